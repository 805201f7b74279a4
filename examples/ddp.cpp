// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST with as many ranks as a launcher starts, each with its
// part of the data. The lines marked DDP are the only ones that differ from single_device.cpp.
//
//   lockstep run -n 4 ddp     also mpirun, srun, torchrun --no-python
//   ddp                       one rank
#include <cstdio>

#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();  // DDP
  auto device = group->device();                // DDP

  const char* folder = "/usr/share/datasets/fashion-mnist";
  lockstep::MnistDataset images(folder);
  lockstep::DistributedSampler sampler(images, group);  // DDP
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
  lockstep::DistributedDataParallel model(net, group);  // DDP

  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);  // DDP
    double sum = 0;
    int steps = 0;
    for (auto& batch : loader) {
      optimizer.zero_grad();
      auto output = model(batch.data);  // DDP
      auto loss = torch::cross_entropy_loss(output, batch.target);
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
  auto guesses = net->forward(tests.images().to(device, torch::kFloat) / 255).argmax(1);
  auto right = guesses.eq(tests.labels().to(device)).to(torch::kFloat).mean();
  std::printf("accuracy %.3f\n", right.item<double>());
  torch::save(net, "net.pt");
}
