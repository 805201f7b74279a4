// SPDX-License-Identifier: BSD-3-Clause
// A program written for several devices, on a machine that has one: DataParallel with one device
// passes everything straight through to the net. Trains the same net bare and wrapped on
// Fashion-MNIST, and compares what they have learned.
//
//   data_parallel_one_device [FOLDER]
#include <cstdio>
#include <string>

#include <torch/torch.h>

#include "lockstep/lockstep.h"

// Trains for one epoch; model is the net or its wrapper.
template <class Model>
void train(Model& model, torch::nn::Sequential& net, lockstep::MnistDataset images,
           torch::Device device) {
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      images.map(torch::data::transforms::Stack<>()), 64);
  torch::optim::Adam optimizer(net->parameters(), 1e-3);
  int steps = 0;
  double sum = 0;
  for (auto& batch : *loader) {
    optimizer.zero_grad();
    auto loss =
        torch::cross_entropy_loss(model->forward(batch.data.to(device)), batch.target.to(device));
    loss.backward();
    optimizer.step();
    sum += loss.template item<double>();
    ++steps;
  }
  std::printf("%d steps, mean loss %.6f\n", steps, sum / steps);
}

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Flatten(), torch::nn::Linear(784, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 10));
  net->to(device);
  return net;
}

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "/usr/share/datasets/fashion-mnist";
  const torch::Device device(torch::cuda::is_available() ? torch::Device("cuda:0") : torch::kCPU);
  const lockstep::MnistDataset images(folder);

  auto bare = make_net(device);
  train(bare, bare, images, device);

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
} catch (const std::exception& error) {
  std::fprintf(stderr, "data_parallel_one_device: %s\n", error.what());
  return 1;
}
