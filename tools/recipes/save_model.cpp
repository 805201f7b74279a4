// SPDX-License-Identifier: BSD-3-Clause
// Writes libtorch's archive into a WholeFile.
#include "tools/recipes/save_model.h"

#include <map>
#include <string>

#include <fmt/format.h>
#include <torch/serialize.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"

namespace lockstep {
namespace {

using torch::serialize::OutputArchive;

// TorchScript's names have no dots.
void add_tensors(OutputArchive& archive, const std::vector<NamedTensor>& tensors) {
  std::map<std::string, OutputArchive> inner;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) {
      archive.write(name, tensor, /*is_buffer=*/true);
      continue;
    }
    inner.try_emplace(name.substr(0, dot), archive.compilation_unit())
        .first->second.write(name.substr(dot + 1), tensor, /*is_buffer=*/true);
  }
  for (auto& [name, part] : inner) archive.write(name, part);
}

}  // namespace

NamedFormat format_named_by(const std::filesystem::path& file) {
  const std::string extension = file.extension();
  if (extension.empty()) return NamedFormat::unnamed;
  if (extension == ".safetensors") return NamedFormat::safetensors;
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return NamedFormat::torch;
  throw UsageError(
      fmt::format("{}: no format is known by the extension {}; give .safetensors, or .pt, .pth or "
                  ".bin for torch's format",
                  file.string(), extension));
}

void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file,
                const std::vector<NamedTensor>& more) {
  if (format_named_by(file) == NamedFormat::safetensors) {
    std::vector<NamedTensor> tensors = state_dict(*net);
    tensors.insert(tensors.end(), more.begin(), more.end());
    return write_safetensors(file, tensors, {{"format", "pt"}});
  }
  WholeFile out(file);
  try {
    OutputArchive archive;
    net->save(archive);
    add_tensors(archive, more);
    archive.save_to([&](const void* data, std::size_t bytes) {
      out.write(data, bytes);
      return bytes;
    });
  } catch (const std::exception& error) {
    throw BackendError(fmt::format("cannot write {}: {}", file.string(), first_line(error)));
  }
  out.commit();
}

}  // namespace lockstep
