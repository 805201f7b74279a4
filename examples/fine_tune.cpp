// SPDX-License-Identifier: BSD-3-Clause
// Fine-tunes a net that Python has trained, by gradual unfreezing: first a new head alone, then
// also the layers below it, and at last the whole net, each part with a rate of its own. The net
// knows the classes 0 to 4 of Fashion-MNIST, and learns the classes 5 to 9. python/fine_tune.py
// makes the checkpoint, and is the same program.
//
//   python3 examples/python/fine_tune.py pretrain pretrained.pt
//   lockstep run -n 2 fine_tune pretrained.pt [IMAGES]
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/lockstep.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

namespace nn = torch::nn;
constexpr std::int64_t kNewClasses = 5;

// Its parts have the names of Python's.
struct NetImpl : nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return head(upper->forward(lower->forward(images)));
  }
  nn::Sequential lower{
      register_module("lower", nn::Sequential{nn::Conv2d(1, 16, 3), nn::ReLU(), nn::MaxPool2d(2)})};
  nn::Sequential upper{register_module(
      "upper", nn::Sequential{nn::Conv2d(16, 32, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten()})};
  nn::Linear head{register_module("head", nn::Linear(32 * 5 * 5, kNewClasses))};
};
TORCH_MODULE(Net);

struct Samples {
  at::Tensor images, labels;
};

// The first images of the classes 5 to 9, which become 0 to 4.
Samples new_classes(lockstep::MnistSplit split, std::int64_t count) {
  const lockstep::MnistDataset set("/usr/share/datasets/fashion-mnist", split);
  const auto rows = torch::nonzero(set.labels().ge(5)).flatten().slice(0, 0, count);
  return {set.images().index_select(0, rows).unsqueeze(1).to(torch::kFloat) / 255,
          set.labels().index_select(0, rows) - 5};
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("fine_tune: name the checkpoint that Python has saved\n", stderr);
    return 2;
  }
  const std::int64_t count = argc > 2 ? std::stoll(argv[2]) : 30'000;
  torch::manual_seed(0);
  auto group = lockstep::init_process_group();
  const auto device = group->device();

  const Samples train = new_classes(lockstep::MnistSplit::train, count);
  const Samples tests = new_classes(lockstep::MnistSplit::test, count / 6);
  lockstep::DistributedSampler sampler(train.labels.size(0), group);
  lockstep::DistributedSampler test_sampler(tests.labels.size(0), group, {.shuffle = false});
  lockstep::MemoryLoader loader(
      train.images, train.labels, sampler,
      {.batch_size = static_cast<std::size_t>(64 / group->size()), .device = device});
  lockstep::MemoryLoader test_loader(tests.images, tests.labels, test_sampler,
                                     {.batch_size = 500, .device = device});

  // torch.save({"model": net.state_dict(), "epoch": 1}, file) in Python
  auto weights = lockstep::state_dict_of(lockstep::read_torch_file(argv[1]), "model");
  std::erase_if(weights, [](const auto& tensor) { return tensor.name.starts_with("head."); });
  Net net;
  const auto differences = lockstep::load_state_dict(*net, weights, /*strict=*/false);
  for (const auto& name : differences.missing) lockstep::print0(group, "new: " + name);
  net->to(device);

  // From the last part to the first, with smaller and smaller rates.
  const std::array<std::pair<std::shared_ptr<nn::Module>, double>, 3> parts{
      {{net->head.ptr(), 1e-3}, {net->upper.ptr(), 3e-4}, {net->lower.ptr(), 1e-4}}};
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [part, rate] : parts) {
    groups.emplace_back(part->parameters(), std::make_unique<torch::optim::AdamOptions>(rate));
  }
  lockstep::optim::Adam optimizer(groups);  // passes over what has no gradient

  for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  std::int64_t step = 0;
  for (std::size_t epoch = 0; epoch < parts.size(); ++epoch) {
    for (auto& parameter : parts[epoch].first->parameters()) parameter.requires_grad_(true);
    // A wrapper for each epoch: it reduces what is not frozen when it is made.
    lockstep::DistributedDataParallel model(net, group);
    sampler.set_epoch(static_cast<std::int64_t>(epoch));
    model->train();
    for (auto& batch : loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      ++step;
      if (group->rank() != 0) continue;
      std::printf("step %lld: loss %.6f\n", static_cast<long long>(step), loss.item<double>());
    }
    const double right = lockstep::accuracy(net, test_loader, test_sampler, group);
    if (group->rank() != 0) continue;
    std::printf("%zu of %zu parts trained: accuracy %.4f\n", epoch + 1, parts.size(), right);
  }
  if (group->rank() == 0) {
    lockstep::write_torch_file("fine_tuned.pt", lockstep::state_dict(*net));  // for Python
  }
}
