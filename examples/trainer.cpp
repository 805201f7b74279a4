// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST with lockstep::Trainer. The same program trains on one
// device, on replicas and on ranks; the first argument, if there is one, chooses replicas.
//
//   trainer                       one process
//   trainer dp                    one process, with a replica per core
//   lockstep run -n 4 trainer     four ranks; also mpirun, srun, torchrun --no-python
#include <cstdint>
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/data.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/utils.h>

int main(int argc, char** argv) {
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  auto device = group->device();
  const bool replicas = argc > 1 && std::string(argv[1]) == "dp";

  const char* folder = "/usr/share/datasets/fashion-mnist";
  lockstep::MnistDataset images(folder);
  lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  lockstep::DistributedSampler sampler(images, group);
  lockstep::DistributedSampler test_sampler(tests, group, {.shuffle = false});
  const auto stack = torch::data::transforms::Stack<>();
  auto loader = torch::data::make_data_loader(images.map(stack), sampler, 128 / group->size());
  auto test_loader = torch::data::make_data_loader(tests.map(stack), test_sampler, 500);

  torch::nn::Sequential net{
      torch::nn::Flatten(),
      torch::nn::Linear(784, 256),
      torch::nn::ReLU(),
      torch::nn::Linear(256, 10),
  };
  net->to(device);

  using lockstep::TrainingMode;
  lockstep::Trainer trainer(
      net, group,
      {.mode = replicas ? TrainingMode::data_parallel : TrainingMode::automatic,
       .epochs = 3,
       .max_grad_norm = 5,
       .lr_schedule =
           [](std::int64_t steps) { return lockstep::optim::CosineAnnealingLR{.T_max = steps}; },
       .progress = true,
       .log = [](const std::string& line) { std::printf("%s\n", line.c_str()); }});
  trainer.optimize_with<lockstep::optim::Adam>(torch::optim::AdamOptions(2e-3));
  trainer.fit(
      *loader,
      [&](auto& model, auto& batch) {
        return torch::cross_entropy_loss(model(batch.data.to(device)), batch.target.to(device));
      },
      {.sampler = &sampler,
       .evaluate = [&] { return lockstep::accuracy(net, *test_loader, test_sampler, group); }});

  if (group->rank() == 0) torch::save(net, "net.pt");
}
