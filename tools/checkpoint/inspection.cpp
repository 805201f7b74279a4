// SPDX-License-Identifier: BSD-3-Clause
// Hashes tensors, and prints what is known of them.
#include "tools/checkpoint/inspection.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/element_type.h"
#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/tensor_bytes.h"
#include "lockstep/core/text_table.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

struct InspectedTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t elements;
  std::uint64_t bytes;
  std::string sha256;
};

struct InspectedTotals {
  std::size_t tensors = 0;
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

std::vector<InspectedTensor> inspected(const TensorSource& source) {
  std::vector<InspectedTensor> tensors;
  for (std::size_t i = 0; i < source.names().size(); ++i) {
    const at::Tensor tensor = source.read(i);
    tensors.push_back({.name = source.names()[i],
                       .dtype = std::string(find_element_type(tensor.scalar_type())->dtype),
                       .shape = tensor.sizes().vec(),
                       .elements = tensor.numel(),
                       .bytes = static_cast<std::uint64_t>(tensor.numel() * tensor.element_size()),
                       .sha256 = sha256_of(tensor)});
  }
  return tensors;
}

InspectedTotals totals_of(const std::vector<InspectedTensor>& tensors) {
  InspectedTotals totals{.tensors = tensors.size()};
  for (const auto& tensor : tensors) {
    totals.elements += tensor.elements;
    totals.bytes += tensor.bytes;
  }
  return totals;
}

}  // namespace

std::string sha256_of(const at::Tensor& tensor) {
  const at::Tensor elements = in_index_order(tensor);
  return sha256_of(bytes_of(elements));
}

std::string inspection_text(const TensorSource& source) {
  const auto tensors = inspected(source);
  std::vector<Cells> lines{{"name", "dtype", "shape", "bytes", "sha256"}};
  for (const auto& tensor : tensors) {
    lines.push_back({in_quotes(tensor.name), tensor.dtype, shape_text(tensor.shape),
                     std::to_string(tensor.bytes), tensor.sha256});
  }
  const InspectedTotals totals = totals_of(tensors);
  std::string text = fmt::format("{}: {}\n", source.file(), source.format());
  for (const auto& [key, value] : source.metadata()) {
    text += fmt::format("metadata {}: {}\n", in_quotes(key), in_quotes(value));
  }
  return text + align_columns(lines) +
         fmt::format("{} tensors, {} elements, {} bytes\n", totals.tensors, totals.elements,
                     totals.bytes);
}

std::string inspection_json(const TensorSource& source) {
  const auto tensors = inspected(source);
  const InspectedTotals totals = totals_of(tensors);
  Json json{
      {"schema_version", kSchemaVersion}, {"versions", versions_json()}, {"file", source.file()},
      {"format", source.format()},        {"metadata", Json::object()},  {"tensors", Json::array()},
      {"elements", totals.elements},      {"bytes", totals.bytes}};
  for (const auto& [key, value] : source.metadata()) json["metadata"][key] = value;
  for (const auto& tensor : tensors) {
    json["tensors"].push_back(Json{{"name", tensor.name},
                                   {"dtype", tensor.dtype},
                                   {"shape", tensor.shape},
                                   {"bytes", tensor.bytes},
                                   {"sha256", tensor.sha256}});
  }
  // Names in torch.save files may contain bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
