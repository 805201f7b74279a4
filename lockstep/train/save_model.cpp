// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/save_model.h"

#include <torch/serialize.h>

#include "lockstep/core/whole_file.h"

namespace lockstep {

void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file) {
  write_whole(file, [&](const std::filesystem::path& temporary) {
    torch::serialize::OutputArchive archive;
    net->save(archive);
    archive.save_to(temporary.string());
  });
}

}  // namespace lockstep
