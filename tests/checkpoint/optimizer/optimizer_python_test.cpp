// SPDX-License-Identifier: BSD-3-Clause
// Training that goes on in the other language, through files of both.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/pythons.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep::testing {
namespace {

using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;
using Factory = std::function<OptimizerPointer(std::vector<at::Tensor>)>;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

template <class Optimizer, class Options>
Factory make(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

// PyTorch 1.13 refuses every float with weights_only=True, even in its own files.
constexpr const char* kBegin = R"(
import sys, torch
folder = sys.argv[1]
def load(file):
    return torch.load(file, weights_only=hasattr(torch, 'compile'))
)";

// Two parameters, gradients that depend on them and on the number of the step, and optimizers whose
// options differ from the defaults.
constexpr const char* kOptimizers = R"(
makers = {
    'sgd': lambda p: torch.optim.SGD(p, lr=0.1),
    'momentum': lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    'adam': lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), weight_decay=0.1),
    'amsgrad': lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
    'adamw': lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    'rmsprop': lambda p: torch.optim.RMSprop(p, lr=0.02, momentum=0.5, centered=True),
    'adagrad': lambda p: torch.optim.Adagrad(p, lr=0.02, lr_decay=0.1),
}
def parameters():
    return [torch.nn.Parameter(torch.arange(12.0).reshape(4, 3) * 0.1 - 0.5),
            torch.nn.Parameter(torch.ones(3))]
def take_steps(optimizer, parameters, first, last):
    for step in range(first, last):
        for p in parameters:
            p.grad = p.detach() * (0.5 + step) - 0.25
        optimizer.step()
def state(parameters, optimizer):
    return {'model': {'w': parameters[0].detach(), 'b': parameters[1].detach()},
            'optimizer': optimizer.state_dict()}
)";

void take_steps_here(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters,
                     int first, int last) {
  for (int step = first; step < last; ++step) {
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = parameter.detach() * (0.5 + step) - 0.25;
    }
    optimizer.step();
  }
}

void save(const std::filesystem::path& file, const std::vector<NamedTensor>& model,
          const torch::optim::Optimizer& optimizer) {
  write_torch_file(file, TorchValue{TorchValue::Dict{
                             {{std::string("model")}, dict_of(model)},
                             {{std::string("optimizer")}, optimizer_state_dict(optimizer)}}});
}

class TrainingInBothLanguages : public ::testing::Test {
 protected:
  void with_each_python(const std::function<void(const std::string& python)>& use) {
    const auto pythons = pythons_with("torch");
    if (pythons.empty()) return skip_or_fail("no Python here has torch");
    for (const std::string& python : pythons) use(python);
  }
  void run(const std::string& python, const std::string& script) {
    Program program({python, "-W", "ignore", "-c", kBegin + script + "\nprint('ok')\n",
                     folder_.path().string()});
    ASSERT_EQ(program.wait(), 0) << python << program.err();
    EXPECT_EQ(program.out(), "ok\n") << python;
  }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }

  TemporaryFolder folder_;
};

TEST_F(TrainingInBothLanguages, EveryOptimizerGoesOn) {
  // The options come from the file.
  const std::vector<std::pair<std::string, Factory>> makers{
      {"sgd", make<torch::optim::SGD>(SGDOptions(1))},
      {"sgd", make<optim::SGD>(SGDOptions(1))},
      {"momentum", make<torch::optim::SGD>(SGDOptions(1))},
      {"momentum", make<optim::SGD>(SGDOptions(1))},
      {"adam", make<torch::optim::Adam>(AdamOptions(1))},
      {"adam", make<optim::Adam>(AdamOptions(1))},
      {"amsgrad", make<torch::optim::Adam>(AdamOptions(1))},
      {"amsgrad", make<optim::Adam>(AdamOptions(1))},
      {"adamw", make<torch::optim::AdamW>(AdamWOptions(1))},
      {"adamw", make<optim::AdamW>(AdamWOptions(1))},
      {"rmsprop", make<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1))},
      {"adagrad", make<torch::optim::Adagrad>(torch::optim::AdagradOptions(1))},
  };
  with_each_python([&](const std::string& python) {
    run(python, std::string(kOptimizers) + R"(
for name, maker in makers.items():
    p = parameters()
    optimizer = maker(p)
    torch.save(state(p, optimizer), folder + f'/{name}.0.pt')
    take_steps(optimizer, p, 0, 3)
    torch.save(state(p, optimizer), folder + f'/{name}.3.pt')
)");
    for (std::size_t i = 0; i < makers.size(); ++i) {
      const auto& [name, maker] = makers[i];
      for (const int steps : {0, 3}) {
        const TorchValue value = read_torch_file(file(name + "." + std::to_string(steps) + ".pt"));
        std::vector<at::Tensor> parameters;
        for (const auto& [key, tensor] : state_dict_of(value, "model")) {
          parameters.push_back(tensor.clone().set_requires_grad(true));
        }
        const auto optimizer = maker(parameters);
        load_optimizer_state_dict(*optimizer, *value.find("optimizer"));
        take_steps_here(*optimizer, parameters, steps, 5);
        save(file(name + "." + std::to_string(i) + "." + std::to_string(steps) + ".here"),
             {{"w", parameters[0]}, {"b", parameters[1]}}, *optimizer);
      }
    }
    run(python, std::string(kOptimizers) + R"(
import glob, os
files = glob.glob(folder + '/*.here')
assert len(files) == 24, files
for file in files:
    maker = makers[os.path.basename(file).split('.')[0]]
    alone = parameters()
    optimizer = maker(alone)
    take_steps(optimizer, alone, 0, 5)
    before = optimizer.state_dict()
    take_steps(optimizer, alone, 5, 8)
    saved = load(file)
    p = parameters()
    for parameter, value in zip(p, (saved['model']['w'], saved['model']['b'])):
        parameter.data.copy_(value)
    optimizer = maker(p)
    own = {key: value for key, value in optimizer.state_dict()['param_groups'][0].items()}
    optimizer.load_state_dict(saved['optimizer'])
    group = optimizer.state_dict()['param_groups'][0]
    for key, value in own.items():
        assert key == 'fused' or group[key] == value, (file, key, group[key], value)
    for number, state in before['state'].items():
        for key, value in state.items():
            if value is None: continue  # of SGD without momentum, before PyTorch 2
            other = optimizer.state_dict()['state'][number][key]
            assert float(value.sum() if torch.is_tensor(value) else value) == 0 or \
                torch.is_tensor(other), (file, key)
    take_steps(optimizer, p, 5, 8)
    for a, b in zip(p, alone):
        assert (a - b).abs().max() < 1e-6, (file, a, b)
)");
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      std::filesystem::remove(entry);
    }
  });
}

// A small net; batches come in the same order in every epoch.
constexpr const char* kMlp = R"(
from torch import nn
def epochs(net, optimizer, count):
    data = torch.load(folder + '/data.pt')
    for _ in range(count):
        for x, y in zip(data['x'].split(64), data['y'].split(64)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
)";

TEST_F(TrainingInBothLanguages, AnEpochInEachGivesTheWeightsOfThreeInPython) {
  with_each_python([&](const std::string& python) {
    run(python, std::string(kMlp) + R"(
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
y = torch.randint(10, (512,))
x = torch.rand(512, 784) + torch.nn.functional.one_hot(y, 784)
torch.save({'x': x, 'y': y}, folder + '/data.pt')
epochs(net, optimizer, 1)
torch.save({'model': net.state_dict(), 'optimizer': optimizer.state_dict()}, folder + '/one.pt')
epochs(net, optimizer, 2)
torch.save(net.state_dict(), folder + '/alone.pt')
)");
    for (const Factory& maker :
         {make<optim::Adam>(AdamOptions(1e-3)), make<torch::optim::Adam>(AdamOptions(1e-3))}) {
      torch::nn::Sequential net;
      net->push_back(torch::nn::Linear(784, 256));
      net->push_back(torch::nn::ReLU());
      net->push_back(torch::nn::Linear(256, 10));
      const auto optimizer = maker(net->parameters());
      const TorchValue value = read_torch_file(file("one.pt"));
      load_state_dict(*net, state_dict_of(value, "model"));
      load_optimizer_state_dict(*optimizer, *value.find("optimizer"));
      const TorchValue data = read_torch_file(file("data.pt"));
      const auto x = std::get<at::Tensor>(data.find("x")->data).split(64);
      const auto y = std::get<at::Tensor>(data.find("y")->data).split(64);
      for (std::size_t i = 0; i < x.size(); ++i) {
        optimizer->zero_grad();
        torch::nn::functional::cross_entropy(net->forward(x[i]), y[i]).backward();
        optimizer->step();
      }
      save(file("two.pt"), state_dict(*net), *optimizer);
      run(python, std::string(kMlp) + R"(
saved = load(folder + '/two.pt')
net.load_state_dict(saved['model'])
optimizer.load_state_dict(saved['optimizer'])
alone = torch.load(folder + '/alone.pt')
before = max((a - net.state_dict()[name]).abs().max().item() for name, a in alone.items())
epochs(net, optimizer, 1)
after = max((a - net.state_dict()[name]).abs().max().item() for name, a in alone.items())
assert after <= 1e-5 and before > 1e-4, (before, after)
)");
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
