// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST, on one device. ddp.cpp is the same program for many
// ranks: compare the two to see what changes.
//
//   single_device [FOLDER]
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  const int epochs = 2;
  torch::manual_seed(0);

  lockstep::MnistDataset images(folder);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::data::samplers::RandomSampler sampler(images.size().value());
  auto loader =
      torch::data::make_data_loader(images.map(torch::data::transforms::Stack<>()), sampler, 64);

  torch::nn::Sequential model(torch::nn::Flatten(), torch::nn::Linear(784, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 10));
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), 1e-3);

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
  const auto guesses = model->forward(tests.images().to(device, torch::kFloat) / 255).argmax(1);
  const auto right = guesses.eq(tests.labels().to(device)).to(torch::kFloat).mean();
  std::printf("accuracy %.3f\n", right.item<double>());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "single_device: %s\n", error.what());
  return 1;
}
