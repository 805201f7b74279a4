// SPDX-License-Identifier: BSD-3-Clause
// Hashes tensors, and prints what is known of them and of their file.
#include "tools/checkpoint/inspection.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/in_quotes.h"
#include "tools/recipes/json_fields.h"
#include "tools/report/text_table.h"

namespace lockstep {

std::string sha256_of(const at::Tensor& tensor) {
  const at::Tensor elements = in_index_order(tensor);
  return sha256_of(bytes_of(elements));
}

std::string inspection_text(const TensorSource& source) {
  std::string text =
      fmt::format("{}: {}{}\n", source.file(), source.format(),
                  source.files() == 1 ? "" : fmt::format(", in {} files", source.files()));
  for (const auto& [key, value] : source.metadata()) {
    text += fmt::format("metadata {}: {}\n", in_quotes(key), in_quotes(value));
  }
  return text + InspectedTensors(source).text();
}

std::string inspection_json(const TensorSource& source) {
  const InspectedTensors tensors(source);
  Json json{{"schema_version", kSchemaVersion},
            {"versions", versions_json()},
            {"file", source.file()},
            {"format", source.format()},
            {"metadata", Json::object()},
            {"tensors", tensors.json()},
            {"elements", tensors.elements},
            {"bytes", tensors.bytes}};
  for (const auto& [key, value] : source.metadata()) json["metadata"][key] = value;
  // Names in torch.save files may contain bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

InspectedTensors::InspectedTensors(const TensorSource& source) {
  for (std::size_t i = 0; i < source.names().size(); ++i) {
    const at::Tensor tensor = source.read_or_bytes(i);
    tensors.push_back({.name = source.names()[i],
                       .dtype = source.dtype(i),
                       .can_read = source.can_read(i),
                       .shape = source.shape(i),
                       .elements = 1,
                       .bytes = static_cast<std::uint64_t>(tensor.numel() * tensor.element_size()),
                       .sha256 = sha256_of(tensor)});
    for (const std::int64_t size : tensors.back().shape) tensors.back().elements *= size;
    elements += tensors.back().elements;
    bytes += tensors.back().bytes;
    if (!tensors.back().can_read) ++unreadable;
  }
}

std::string InspectedTensors::text() const {
  std::vector<Cells> lines{{"name", "dtype", "shape", "bytes", "sha256"}};
  for (const auto& tensor : tensors) {
    lines.push_back({in_quotes(tensor.name),
                     tensor.can_read ? tensor.dtype : in_quotes(tensor.dtype),
                     shape_text(tensor.shape), std::to_string(tensor.bytes), tensor.sha256});
  }
  return align_columns(lines) +
         fmt::format("{} tensors, {} elements, {} bytes\n", tensors.size(), elements, bytes) +
         (unreadable == 0 ? ""
                          : fmt::format("{} of types that this libtorch lacks, in quotes: only "
                                        "their bytes can be read\n",
                                        unreadable));
}

Json InspectedTensors::json() const {
  Json list = Json::array();
  for (const auto& tensor : tensors) {
    list.push_back(Json{{"name", tensor.name},
                        {"dtype", tensor.dtype},
                        {"shape", tensor.shape},
                        {"bytes", tensor.bytes},
                        {"sha256", tensor.sha256}});
    if (!tensor.can_read) list.back()["readable"] = false;
  }
  return list;
}

}  // namespace lockstep
