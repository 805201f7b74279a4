// SPDX-License-Identifier: BSD-3-Clause
// Prints a file's tensors and metadata.
#include "tools/checkpoint/inspection.h"

#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/tensor_bytes.h"
#include "tools/checkpoint/inspected_tensors.h"

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

}  // namespace lockstep
