// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST with as many ranks as a launcher starts, each with its
// part of the data. The lines marked DDP are not in single_device.cpp.
//
//   lockstep run -n 4 ddp [FOLDER]     also mpirun, srun, torchrun --no-python
//   ddp [FOLDER]                       one rank
#include <cstdio>
#include <cstdlib>
#include <string>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

int main(int argc, char** argv) try {
  std::string folder = "/usr/share/datasets/fashion-mnist";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    // Older launchers pass the local rank as an argument instead of in the environment.
    if (argument.starts_with("--local_rank=") || argument.starts_with("--local-rank=")) {
      setenv("LOCAL_RANK", argument.substr(13).c_str(), 1);
    } else {
      folder = argument;
    }
  }
  const int epochs = 2;
  torch::manual_seed(0);

  auto group = lockstep::init_process_group();  // DDP
  lockstep::MnistDataset images(folder);
  const auto device = group->device();                                  // DDP
  lockstep::DistributedSampler sampler(images.size().value(), *group);  // DDP
  auto loader =
      torch::data::make_data_loader(images.map(torch::data::transforms::Stack<>()), sampler, 64);

  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  lockstep::DistributedDataParallel model(net, group);  // DDP

  for (int epoch = 0; epoch < epochs; ++epoch) {
    sampler.set_epoch(epoch);  // DDP
    double sum = 0;
    int steps = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss =
          torch::cross_entropy_loss(model->forward(batch.data.to(device)), batch.target.to(device));
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    std::printf("epoch %d: %d steps, mean loss %.4f\n", epoch, steps, sum / steps);
  }

  if (group->rank() != 0) return 0;  // DDP
  torch::NoGradGuard no_grad;
  lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  const auto guesses = net->forward(tests.images().to(device, torch::kFloat) / 255).argmax(1);
  const auto right = guesses.eq(tests.labels().to(device)).to(torch::kFloat).mean();
  std::printf("accuracy %.3f\n", right.item<double>());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ddp: %s\n", error.what());
  return 1;
}
