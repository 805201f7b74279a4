// SPDX-License-Identifier: BSD-3-Clause
// Writes libtorch's archive into a WholeFile.
#include "tools/recipes/save_model.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include "lockstep/core/error.h"
#include "lockstep/core/whole_file.h"

namespace lockstep {

void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file) {
  WholeFile out(file);
  try {
    torch::serialize::OutputArchive archive;
    net->save(archive);
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
