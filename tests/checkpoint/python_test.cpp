// SPDX-License-Identifier: BSD-3-Clause
// Files that Python reads, and files that Python wrote.
#include <filesystem>
#include <fstream>

#include "checkpoint/pythons.h"
#include "checkpoint/tensors_of_all_types.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"

namespace lockstep::testing {
namespace {

// The net of the tests, in Python and here.
constexpr const char* kNet = R"(
import sys, torch
from torch import nn
folder = sys.argv[1]
net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2, bias=False))
net[2].weight = nn.Parameter(torch.ones(2, 2))
)";

torch::nn::Sequential net_here() {
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(3, 2));
  net->push_back(torch::nn::BatchNorm1d(2));
  net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
  return net;
}

class Python : public ::testing::Test {
 protected:
  // Runs the script with each Python; what it prints must be "ok".
  void run(const std::string& modules, const std::string& script) {
    const auto pythons = pythons_with(modules);
    if (pythons.empty()) return skip_or_fail("no Python here has " + modules);
    for (const std::string& python : pythons) run_with(python, script);
  }
  void run_with(const std::string& python, const std::string& script) {
    Program program(
        {python, "-W", "ignore", "-c", kNet + script + "\nprint('ok')\n", folder_.path().string()});
    EXPECT_EQ(program.wait(), 0) << python << program.err();
    EXPECT_EQ(program.out(), "ok\n") << python;
  }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }

  TemporaryFolder folder_;
};

constexpr const char* kCompareAll = R"(
for name, tensor in tensors.items():
    if name in ('empty', 'scalar', 'tied'): continue
    values = [abs(v) if 'uint' in name or 'float8' in name else v
              for v in (0.0, 1.0, -1.5, 2.0, 0.25, -8.0)]
    expected = torch.tensor(values).to(tensor.dtype).reshape(2, 3)
    assert str(tensor.dtype) == 'torch.' + name, name
    assert tensor.shape == (2, 3) and tensor.tolist() == expected.tolist(), name
assert tensors['empty'].shape == (0, 4) and tensors['scalar'].item() == 7
)";

std::vector<NamedTensor> tensors_for_python(bool with_later_types) {
  std::vector<NamedTensor> tensors = tensors_of_all_types();
  if (!with_later_types) tensors.resize(11);
  tensors.push_back({"empty", torch::empty({0, 4})});
  tensors.push_back({"scalar", torch::tensor(7, torch::kLong)});
  return tensors;
}

TEST_F(Python, OpensOurSafetensors) {
  write_safetensors(file("all.safetensors"), tensors_for_python(true), {{"format", "pt"}});
  write_safetensors(file("net.safetensors"), state_dict(*net_here()));
  run("torch safetensors", std::string(R"(
import safetensors.torch
tensors = safetensors.torch.load_file(folder + '/all.safetensors')
with safetensors.safe_open(folder + '/all.safetensors', 'pt') as opened:
    assert opened.metadata() == {'format': 'pt'}
)") + kCompareAll + R"(
net.load_state_dict(safetensors.torch.load_file(folder + '/net.safetensors'), strict=True)
)");
}

TEST_F(Python, SafetensorsOfPythonAreRead) {
  const auto pythons = pythons_with("torch safetensors numpy");
  if (pythons.empty()) return skip_or_fail("no Python here has torch, safetensors and numpy");
  run_with(pythons.front(), R"(
import safetensors.torch
state = net.state_dict()
safetensors.torch.save_file(state, folder + '/net.safetensors', {'step': '12'})
safetensors.torch.save_file({}, folder + '/none.safetensors')
)");
  const Safetensors read = read_safetensors(file("net.safetensors"));
  EXPECT_EQ(read.metadata.at("step"), "12");
  auto net = net_here();
  load_state_dict(*net, read.tensors);
  EXPECT_TRUE(net->parameters().back().equal(torch::ones({2, 2})));
  EXPECT_TRUE(read_safetensors(file("none.safetensors")).tensors.empty());
}

TorchValue plain_values() {
  using Dict = TorchValue::Dict;
  using List = TorchValue::List;
  using Tuple = TorchValue::Tuple;
  const List list{{std::int64_t{1}},
                  {-(std::int64_t{1} << 40)},
                  {0.5},
                  {std::string("text")},
                  {},
                  {true},
                  {false}};
  return {Dict{{{std::string("list")}, {list}},
               {{std::string("tuple")}, {Tuple{{{Tuple{}}, {List{}}, {Dict{}}}}}},
               {{std::int64_t{-7}}, {Dict{{{std::int64_t{0}}, {std::string("int")}}}}}}};
}

TEST_F(Python, OpensOurTorchFilesWithWeightsOnly) {
  auto net = net_here();
  auto tied = state_dict(*net);
  tied.push_back({"tied", tied.front().tensor});
  write_torch_file(file("tied.pt"), tied);
  write_torch_file(file("net.pt"), state_dict(*net));
  write_torch_file(file("values.pt"), plain_values());
  const TorchValue tensor{torch::ones({3})};
  write_torch_file(
      file("parts.pt"),
      TorchValue{TorchValue::Dict{{{std::string("model")}, dict_of(state_dict(*net))},
                                  {{std::string("views")}, {TorchValue::List{tensor, tensor}}}}});
  write_torch_file(file("all.pt"), tensors_for_python(false));
  write_torch_file(file("later.pt"), tensors_for_python(true));
  run("torch", std::string(R"(
net.load_state_dict(torch.load(folder + '/net.pt', weights_only=True), strict=True)
# PyTorch 1.13 refuses every float with weights_only=True, even in its own files.
values = torch.load(folder + '/values.pt', weights_only=hasattr(torch, 'compile'))
assert values == {'list': [1, -2**40, 0.5, 'text', None, True, False], 'tuple': ((), [], {}),
                  -7: {0: 'int'}}, values
parts = torch.load(folder + '/parts.pt', weights_only=True)
net.load_state_dict(parts['model'], strict=True)
assert parts['views'][0].data_ptr() == parts['views'][1].data_ptr()
tied = torch.load(folder + '/tied.pt', weights_only=True)
assert type(tied).__name__ == 'OrderedDict'
assert tied['tied'].data_ptr() == tied['0.weight'].data_ptr() != tied['0.bias'].data_ptr()
new = hasattr(torch, 'uint64')
tensors = torch.load(folder + ('/later.pt' if new else '/all.pt'), weights_only=True)
)") + kCompareAll);
}

TEST_F(Python, TorchFilesOfPythonAreRead) {
  const auto pythons = pythons_with("torch");
  if (pythons.empty()) return skip_or_fail("no Python here has torch");
  for (const std::string& python : pythons) {
    run_with(python, R"(
with torch.no_grad():
    net[0].weight.copy_(torch.arange(6.0).reshape(2, 3))
optimizer = torch.optim.Adam(net.parameters())
net(torch.ones(4, 3)).sum().backward()
weight = net[0].weight.detach().clone()
optimizer.step()
base = torch.arange(12)
names = ['uint16', 'uint32', 'uint64', 'float8_e4m3fn'] if hasattr(torch, 'uint64') else []
torch.save({'model': net.state_dict(), 'optimizer': optimizer.state_dict(), 'epoch': 3,
            'lr': 0.1, 'large': 2**40, 'negative': -7, 'none': None, 'flags': (True, False),
            'views': [base, base[2:8:2], base.reshape(3, 4).t()],
            'later': {name: torch.ones(3).to(getattr(torch, name)) for name in names},
            'parameter': nn.Parameter(torch.ones(2)), 'half': torch.ones(2).bfloat16(),
            'numbers': net[0].weight.flatten().tolist(),
            'empty': torch.empty(0, 3), 'scalar': torch.tensor(True)}, folder + '/full.pt')
torch.save(net.state_dict(), folder + '/net.pt')
torch.save(net, folder + '/module.pt')
torch.save(net.state_dict(), folder + '/legacy.pt', _use_new_zipfile_serialization=False)
)");
    const TorchValue value = read_torch_file(file("full.pt"));
    EXPECT_EQ(std::get<std::int64_t>(value.find("epoch")->data), 3);
    EXPECT_EQ(std::get<double>(value.find("lr")->data), 0.1);
    EXPECT_EQ(std::get<std::int64_t>(value.find("large")->data), std::int64_t{1} << 40);
    EXPECT_EQ(std::get<std::int64_t>(value.find("negative")->data), -7);
    const auto& numbers = std::get<TorchValue::List>(value.find("numbers")->data);
    for (const auto& state :
         {state_dict_of(value, "model"), state_dict_of(read_torch_file(file("net.pt")))}) {
      auto net = net_here();
      load_state_dict(*net, state);
      const at::Tensor weight = net->parameters()[0].detach().flatten();
      ASSERT_EQ(weight.numel(), static_cast<std::int64_t>(numbers.size()));
      for (std::int64_t i = 0; i < weight.numel(); ++i) {
        EXPECT_EQ(weight[i].item<double>(),
                  std::get<double>(numbers[static_cast<std::size_t>(i)].data));
      }
    }
    std::map<std::string, at::Tensor> tensors;
    for (const auto& [name, tensor] : all_tensors(value)) tensors.emplace(name, tensor);
    EXPECT_TRUE(tensors.at("views.1").equal(torch::tensor({2, 4, 6})));
    EXPECT_TRUE(tensors.at("views.2").equal(torch::arange(12).reshape({3, 4}).t()));
    EXPECT_EQ(tensors.at("views.0").data_ptr(), tensors.at("views.2").data_ptr());
    EXPECT_EQ(tensors.at("optimizer.state.0.exp_avg").sizes(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_TRUE(tensors.at("half").equal(torch::ones({2}, torch::kBFloat16)));
    EXPECT_EQ(tensors.at("empty").sizes(), (std::vector<std::int64_t>{0, 3}));
    EXPECT_TRUE(tensors.at("scalar").item<bool>());
    EXPECT_THAT([&] { read_torch_file(file("module.pt")); },
                ::testing::ThrowsMessage<CheckpointError>(::testing::HasSubstr(
                    "it refers to \"torch.nn.modules.container.Sequential\"")));
    EXPECT_THAT([&] { read_torch_file(file("legacy.pt")); },
                ::testing::ThrowsMessage<CheckpointError>(
                    ::testing::HasSubstr("files from before PyTorch 1.6")));
  }
}

TEST(TorchFile, RefusesTorchScriptArchives) {
  const TemporaryFolder folder;
  torch::nn::Linear net(2, 2);
  const auto file = folder.path() / "script.pt";
  torch::save(net, file.string());
  EXPECT_THAT([&] { read_torch_file(file); },
              ::testing::ThrowsMessage<CheckpointError>(
                  ::testing::HasSubstr("it is a TorchScript archive")));
}

}  // namespace
}  // namespace lockstep::testing
