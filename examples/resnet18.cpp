// SPDX-License-Identifier: BSD-3-Clause
// Trains ResNet-18 on Fashion-MNIST with lockstep::Trainer. Its batch normalization is a
// lockstep::SyncBatchNorm: ranks normalize the batches of all ranks together. The first argument
// chooses the mode, the second one how many of the 60,000 images are used.
//
//   resnet18 auto                       one process
//   resnet18 dp                         one process, with a replica per core
//   lockstep run -n 2 resnet18 auto     two ranks; also mpirun, srun, torchrun --no-python
#include <cstdint>
#include <cstdio>
#include <string>

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

namespace nn = torch::nn;

nn::Conv2d convolution(int in, int out, int size, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockImpl : nn::Cloneable<BlockImpl> {
  BlockImpl(int in_, int out_, int stride_) : in(in_), out(out_), stride(stride_) { reset(); }

  void reset() override {
    conv1 = register_module("conv1", convolution(in, out, 3, stride));
    bn1 = register_module("bn1", lockstep::SyncBatchNorm(out));
    conv2 = register_module("conv2", convolution(out, out, 3, 1));
    bn2 = register_module("bn2", lockstep::SyncBatchNorm(out));
    if (in == out) return;
    downsample = register_module("downsample", nn::Sequential{convolution(in, out, 1, stride),
                                                              lockstep::SyncBatchNorm(out)});
  }

  at::Tensor forward(const at::Tensor& input) {
    const auto output = bn2(conv2(torch::relu(bn1(conv1(input)))));
    return torch::relu(output + (downsample ? downsample->forward(input) : input));
  }

  int in, out, stride;
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  lockstep::SyncBatchNorm bn1{nullptr}, bn2{nullptr};
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

nn::Sequential resnet18() {
  nn::Sequential net{
      convolution(1, 64, 7, 2),
      lockstep::SyncBatchNorm(64),
      nn::ReLU(),
      nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)),
  };
  for (const int width : {64, 128, 256, 512}) {
    const bool first = width == 64;
    net->push_back(Block(first ? 64 : width / 2, width, first ? 1 : 2));
    net->push_back(Block(width, width, 1));
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 10));
  return net;
}

// The first images, standardized: float [count, 1, 28, 28].
at::Tensor inputs_of(const lockstep::MnistDataset& set, std::int64_t count,
                     const lockstep::Standardization& scale) {
  return scale.apply(set.images().slice(0, 0, count)).unsqueeze(1);
}

int main(int argc, char** argv) {
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  const auto device = group->device();
  const bool replicas = argc > 1 && std::string(argv[1]) == "dp";
  const std::int64_t count = argc > 2 ? std::stoll(argv[2]) : 60'000;

  const char* folder = "/usr/share/datasets/fashion-mnist";
  const lockstep::MnistDataset images(folder);
  const lockstep::MnistDataset tests(folder, lockstep::MnistSplit::test);
  const auto scale = lockstep::measure_standardization(images.images(), group);
  const auto inputs = inputs_of(images, count, scale);
  const auto test_inputs = inputs_of(tests, count / 6, scale);
  lockstep::DistributedSampler sampler(static_cast<std::size_t>(inputs.size(0)), group);
  lockstep::DistributedSampler test_sampler(static_cast<std::size_t>(test_inputs.size(0)), group,
                                            {.shuffle = false});
  lockstep::MemoryLoader loader(
      inputs, images.labels().slice(0, 0, count), sampler,
      {.batch_size = static_cast<std::size_t>(128 / group->size()), .device = device});
  lockstep::MemoryLoader test_loader(test_inputs, tests.labels().slice(0, 0, count / 6),
                                     test_sampler, {.batch_size = 250, .device = device});

  auto net = resnet18();
  net->to(device);
  using lockstep::TrainingMode;
  lockstep::Trainer trainer(
      net, group,
      {.mode = replicas ? TrainingMode::data_parallel : TrainingMode::automatic,
       .epochs = 2,
       .sync_batchnorm = true,
       .log = [](const auto& line) { std::puts(line.c_str()); }});
  trainer.optimize_with<lockstep::optim::SGD>(
      torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(5e-4));
  trainer.fit(loader,
              [](auto& model, auto& batch) {
                return torch::cross_entropy_loss(model(batch.data), batch.target);
              },
              {.sampler = &sampler, .evaluate = [&] {
                 return lockstep::accuracy(net, test_loader, test_sampler, group);
               }});
  if (group->rank() == 0) torch::save(net, "resnet18.pt");
}
