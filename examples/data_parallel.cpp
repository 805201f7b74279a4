// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST in one process, on all visible GPUs, or else on all
// cores. The lines marked DP are the only ones that differ from single_device.cpp.
//
//   data_parallel
#include <cstdio>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(0);
  torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);

  const char* folder = "/usr/share/datasets/fashion-mnist";
  lockstep::MnistDataset images(folder);
  torch::data::samplers::RandomSampler sampler(images.size().value());
  auto pixels = images.images().to(torch::kFloat) / 255;
  lockstep::MemoryLoader loader(pixels, images.labels(), sampler,
                                {.batch_size = 64, .device = device});

  // Braces, not parentheses: layers draw their weights in this order, as in Python.
  torch::nn::Sequential net{
      torch::nn::Flatten(),
      torch::nn::Linear(784, 256),
      torch::nn::ReLU(),
      torch::nn::Linear(256, 10),
  };
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  lockstep::DataParallel model(net);  // DP

  for (int epoch = 0; epoch < 2; ++epoch) {
    double sum = 0;
    int steps = 0;
    for (auto& batch : loader) {
      optimizer.zero_grad();
      auto output = model(batch.data);  // DP
      auto loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    std::printf("epoch %d: %d steps, mean loss %.4f\n", epoch, steps, sum / steps);
  }

  torch::NoGradGuard no_grad;
  lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  auto guesses = net->forward(tests.images().to(device, torch::kFloat) / 255).argmax(1);
  auto right = guesses.eq(tests.labels().to(device)).to(torch::kFloat).mean();
  std::printf("accuracy %.3f\n", right.item<double>());
  torch::save(net, "net.pt");
}
