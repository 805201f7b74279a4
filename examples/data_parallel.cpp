// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST on all GPUs that are visible, or on several cores, in one
// process. The line marked DP is not in single_device.cpp; forward goes through the wrapper that it
// makes.
//
//   data_parallel [REPLICAS [FOLDER]]     REPLICAS on CPU; one for each core by default
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

int main(int argc, char** argv) try {
  const int replicas = argc > 1 ? std::stoi(argv[1]) : 0;
  const std::string folder = argc > 2 ? argv[2] : "/usr/share/datasets/fashion-mnist";
  const int epochs = 2;
  torch::manual_seed(0);

  lockstep::MnistDataset images(folder);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::data::samplers::RandomSampler sampler(images.size().value());
  auto loader =
      torch::data::make_data_loader(images.map(torch::data::transforms::Stack<>()), sampler, 64);

  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  lockstep::DataParallel model(net, {.replicas = replicas});  // DP

  for (int epoch = 0; epoch < epochs; ++epoch) {
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

  torch::NoGradGuard no_grad;
  lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  const auto guesses = net->forward(tests.images().to(device, torch::kFloat) / 255).argmax(1);
  const auto right = guesses.eq(tests.labels().to(device)).to(torch::kFloat).mean();
  std::printf("accuracy %.3f\n", right.item<double>());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "data_parallel: %s\n", error.what());
  return 1;
}
