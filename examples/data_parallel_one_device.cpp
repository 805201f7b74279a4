// SPDX-License-Identifier: BSD-3-Clause
// A program written for several devices, on a machine that has one: DataParallel with one device
// passes everything straight through to the net. Trains the same net bare and wrapped on
// Fashion-MNIST, and compares what they have learned.
//
//   data_parallel_one_device
#include <cstdio>

#include <lockstep/lockstep.h>
#include <torch/cuda.h>
#include <torch/data/samplers/sequential.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

// Trains for one epoch; model calls the net or is its wrapper.
template <class Model>
void train(Model& model, torch::nn::Sequential& net, lockstep::MnistDataset images,
           torch::Device device) {
  torch::data::samplers::SequentialSampler sampler(images.size().value());
  auto pixels = images.images().to(torch::kFloat) / 255;
  lockstep::MemoryLoader loader(pixels, images.labels(), sampler,
                                {.batch_size = 64, .device = device});
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  int steps = 0;
  double sum = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    torch::Tensor output = model(batch.data);
    auto loss = torch::cross_entropy_loss(output, batch.target);
    loss.backward();
    optimizer.step();
    sum += loss.item<double>();
    ++steps;
  }
  std::printf("%d steps, mean loss %.6f\n", steps, sum / steps);
}

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(0);
  // Braces, not parentheses: layers draw their weights in this order, as in Python.
  torch::nn::Sequential net{
      torch::nn::Flatten(),
      torch::nn::Linear(784, 256),
      torch::nn::ReLU(),
      torch::nn::Linear(256, 10),
  };
  net->to(device);
  return net;
}

int main() {
  const torch::Device device(torch::cuda::is_available() ? torch::Device("cuda:0") : torch::kCPU);
  const lockstep::MnistDataset images("/usr/share/datasets/fashion-mnist");

  auto bare = make_net(device);
  auto call_bare = [&](const torch::Tensor& input) { return bare->forward(input); };
  train(call_bare, bare, images, device);

  auto net = make_net(device);
  lockstep::DataParallelOptions one_device;
  if (device.is_cuda()) {
    one_device.device_ids = {device};
  } else {
    one_device.replicas = 1;
  }
  lockstep::DataParallel model(net, one_device);
  train(model, net, images, device);

  bool same = true;
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    same = same && net->parameters()[i].equal(bare->parameters()[i]);
  }
  std::printf("%s\n", same ? "the same weights, bit for bit" : "other weights");
  return same || device.is_cuda() ? 0 : 1;  // GPU kernels may differ from run to run
}
