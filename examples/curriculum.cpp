// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST from easy to hard images: rank 0 scores them with a
// linear classifier, and the pool that all ranks draw from grows until it holds every image.
//
//   lockstep run -n 2 curriculum
#include <cstdio>

#include <lockstep/lockstep.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

// The loss of each image under a linear classifier after one pass over the data.
torch::Tensor score(const torch::Tensor& images, const torch::Tensor& labels) {
  torch::nn::Linear probe(784, 10);
  torch::optim::SGD optimizer(probe->parameters(), 0.1);
  for (int begin = 0; begin < images.size(0); begin += 100) {
    optimizer.zero_grad();
    auto output = probe(images.slice(0, begin, begin + 100));
    torch::cross_entropy_loss(output, labels.slice(0, begin, begin + 100)).backward();
    optimizer.step();
  }
  torch::NoGradGuard no_grad;
  return torch::cross_entropy_loss(probe(images), labels, {}, /*reduction=*/at::Reduction::None);
}

int main() {
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  auto device = group->device();
  const char* folder = "/usr/share/datasets/fashion-mnist";
  lockstep::MnistDataset set(folder);
  auto images = set.images().to(torch::kFloat).flatten(1) / 255;

  // Ranks must agree on the order, so one of them scores.
  auto scores = torch::empty({images.size(0)}, device);
  if (group->rank() == 0) scores.copy_(score(images, set.labels()));
  group->broadcast(scores, 0).wait();

  const int batch = 128 / group->size();
  lockstep::CurriculumSampler sampler(set, scores, group,
                                      {.global_batch_size = batch * group->size(),
                                       .full_at_step = 700,
                                       .pacing = lockstep::Pacing::root,
                                       .start_share = 0.3});
  lockstep::MemoryLoader loader(images, set.labels(), sampler,
                                {.batch_size = static_cast<std::size_t>(batch), .device = device});

  torch::nn::Sequential net{
      torch::nn::Linear(784, 256),
      torch::nn::ReLU(),
      torch::nn::Linear(256, 10),
  };
  net->to(device);
  lockstep::DistributedDataParallel model(net, group);
  lockstep::optim::Adam optimizer(model, 1e-3);

  int step = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    const auto pool = sampler.pool_size(step);
    double sum = 0;
    const int first = step;
    for (auto& item : loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model(item.data), item.target);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
      ++step;
    }
    if (group->rank() != 0) continue;
    std::printf("epoch %d: from %zu images on, mean loss %.4f\n", epoch, pool,
                sum / (step - first));
  }

  if (group->rank() != 0) return 0;
  torch::NoGradGuard no_grad;
  lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  auto inputs = tests.images().to(device, torch::kFloat).flatten(1) / 255;
  auto right = net->forward(inputs).argmax(1).eq(tests.labels().to(device));
  std::printf("accuracy %.3f\n", right.to(torch::kFloat).mean().item<double>());
}
