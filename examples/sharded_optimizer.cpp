// SPDX-License-Identifier: BSD-3-Clause
// Trains a small network on Fashion-MNIST with an Adam whose work and state are divided among the
// ranks, clips the gradients, and writes a checkpoint that any number of ranks can load.
//
//   lockstep run -n 2 sharded_optimizer            starts from the beginning
//   lockstep run -n 4 sharded_optimizer resume     continues
#include <cstdio>
#include <cstring>

#include <lockstep/lockstep.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>
#include <torch/utils.h>

// The number of elements whose state this rank keeps.
long elements_of(lockstep::optim::Adam& optimizer) {
  long elements = 0;
  for (const auto& item : optimizer.state()) {
    auto& state = static_cast<torch::optim::AdamParamState&>(*item.second);
    elements += state.exp_avg().numel();
  }
  return elements;
}

int main(int argc, char** argv) {
  const bool resumes = argc > 1 && std::strcmp(argv[1], "resume") == 0;
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();

  lockstep::MnistDataset images("/usr/share/datasets/fashion-mnist");
  lockstep::DistributedSampler sampler(images, group);
  auto pixels = images.images().to(torch::kFloat) / 255;
  lockstep::MemoryLoader loader(pixels, images.labels(), sampler, {.batch_size = 64});

  torch::nn::Sequential net{
      torch::nn::Flatten(),
      torch::nn::Linear(784, 256),
      torch::nn::ReLU(),
      torch::nn::Linear(256, 10),
  };
  if (resumes) torch::load(net, "net.pt");
  // Each rank gets the means of its own part only, which is all that its optimizer needs.
  lockstep::DistributedDataParallel model(net, group, {.whole_gradients = false});
  lockstep::optim::Adam optimizer(model, 1e-3);
  if (resumes) torch::load(optimizer, "optimizer.pt");

  double sum = 0;
  int steps = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    auto loss = torch::cross_entropy_loss(model(batch.data), batch.target);
    loss.backward();
    lockstep::clip_grad_norm_(model, 1.0);
    optimizer.step();
    sum += loss.item<double>();
    ++steps;
  }
  std::printf("rank %d of %d: %d steps, mean loss %.4f, state of %ld elements\n", group->rank(),
              group->size(), steps, sum / steps, elements_of(optimizer));

  optimizer.consolidate_state();  // on every rank, for rank 0
  if (group->rank() != 0) return 0;
  torch::save(net, "net.pt");
  torch::save(optimizer, "optimizer.pt");
}
