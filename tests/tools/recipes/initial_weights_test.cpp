// SPDX-License-Identifier: BSD-3-Clause
// A recipe's net starts with the weights that Python's torch gives the same layers after the same
// manual_seed.
#include <gmock/gmock.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tools/recipes/recipe.h"

namespace lockstep {
namespace {

struct Parameter {
  std::string name;
  double first;
  double last;
  double sum;
};

struct Reference {
  std::string recipe;
  std::size_t parameter_count;
  // Not all, if they are many.
  std::vector<Parameter> parameters;
};

void PrintTo(const Reference& reference, std::ostream* stream) {
  *stream << reference.recipe;
}

// PyTorch 1.13.1 and 2.13.0 print the same numbers:
//
//   import torch
//   from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential
//   nets = {
//       "linear": lambda: Sequential(Linear(1, 1)),
//       "mlp": lambda: Sequential(Flatten(), Linear(784, 256), ReLU(), Linear(256, 10)),
//       "cnn": lambda: Sequential(Conv2d(1, 16, 3), ReLU(), MaxPool2d(2),
//                                 Conv2d(16, 32, 3), ReLU(), MaxPool2d(2),
//                                 Flatten(), Linear(800, 128), ReLU(), Linear(128, 10)),
//   }
//   for recipe, make_net in nets.items():
//       torch.manual_seed(0)
//       for name, parameter in make_net().named_parameters():
//           x = parameter.detach().double().flatten()
//           print(recipe, name, x[0].item(), x[-1].item(), x.sum().item())
//
// resnet18 is torchvision.models.resnet18(num_classes=10) with conv1 = Conv2d(1, 64, 7, 2, 3,
// bias=False) in its constructor. char-transformer is a Sequential of "embedding" (byte =
// Embedding(256, 128), position = Embedding(64, 128), then init.normal_(weight, std=0.02) of both),
// "layers" (4 of TransformerEncoderLayer(128, 4, 512, dropout=0, activation="gelu",
// batch_first=True, norm_first=True)), "norm" (LayerNorm(128)) and "head" (Linear(128, 256)).
const std::vector<Reference> kPython{
    {"linear",
     2,
     {{"0.weight", -0.007486820220947266, -0.007486820220947266, -0.007486820220947266},
      {"0.bias", 0.5364435911178589, 0.5364435911178589, 0.5364435911178589}}},
    {"mlp",
     4,
     {{"1.weight", -0.00026738643646240234, -0.01413381565362215, 11.015339755864801},
      {"1.bias", -0.01171777956187725, 0.013478309847414494, -0.5794029836688424},
      {"3.weight", -0.015371456742286682, 0.03806693106889725, 1.8937877267599106},
      {"3.bias", 0.06172066926956177, 0.015058532357215881, 0.0314968079328537}}},
    {"cnn",
     8,
     {{"0.weight", -0.0024956068955361843, -0.02410721778869629, -1.0519974026829004},
      {"0.bias", -0.29944050312042236, -0.13515755534172058, -1.5316754307132214},
      {"3.weight", -0.0160512737929821, 0.06504195183515549, -3.4190548679725907},
      {"3.bias", -0.030330121517181396, -0.04456654191017151, 0.24710378027521074},
      {"7.weight", 0.034712180495262146, -0.022623982280492783, 2.930044549280865},
      {"7.bias", -0.018628418445587158, 0.013026436790823936, -0.06990878749638796},
      {"9.weight", -0.00918909814208746, 0.062782883644104, 2.8640067506639753},
      {"9.bias", -0.029217658564448357, -0.057091984897851944, -0.11669807089492679}}},
    {"resnet18",
     62,
     {{"conv1.weight", -0.03390483558177948, -0.00557125685736537, -1.9907150496612758},
      {"layer1.0.bn1.weight", 1.0, 1.0, 64.0},
      {"layer2.0.downsample.0.weight", -0.12962986528873444, -0.1420612931251526,
       10.010297272681782},
      {"layer4.1.conv2.weight", -0.018852656707167625, 0.013212720863521099, 6.304262215314248},
      {"fc.weight", 0.0310532134026289, 0.04257988557219505, -0.25491948440896617},
      {"fc.bias", -0.020267212763428688, -0.010907788760960102, -0.025067006703466177}}},
    {"char-transformer",
     54,
     {{"embedding.byte.weight", -0.01454349234700203, 0.021929018199443817, 1.768907607595736},
      {"embedding.position.weight", 0.017140788957476616, 0.015119547955691814, 0.8960109079628182},
      {"layers.3.self_attn.in_proj_weight", -0.05457715690135956, 0.04475528746843338,
       -12.473500168654027},
      {"layers.3.self_attn.in_proj_bias", 0.0, 0.0, 0.0},
      {"layers.3.self_attn.out_proj.weight", -0.057596489787101746, -0.07271958142518997,
       0.7393928693412022},
      {"layers.3.linear1.bias", -0.0472056083381176, 0.07095891982316971, 1.1369869131813175},
      {"layers.3.linear2.weight", -0.025683609768748283, 0.03834741562604904, -1.9077570198476224},
      {"head.weight", 0.06106977164745331, -0.013839907944202423, -8.119427206387172},
      {"head.bias", -0.015876369550824165, 0.08774273842573166, 0.09290242969291285}}}};

class InitialWeights : public ::testing::TestWithParam<Reference> {};

TEST_P(InitialWeights, ArePythons) {
  torch::manual_seed(0);
  const auto parameters = find_recipe(GetParam().recipe).make_net()->named_parameters();
  ASSERT_EQ(parameters.size(), GetParam().parameter_count);
  for (const Parameter& expected : GetParam().parameters) {
    const at::Tensor* parameter = parameters.find(expected.name);
    ASSERT_NE(parameter, nullptr) << expected.name;
    const at::Tensor values = parameter->detach().to(torch::kDouble).flatten();
    EXPECT_NEAR(values[0].item<double>(), expected.first, 1e-7) << expected.name;
    EXPECT_NEAR(values[-1].item<double>(), expected.last, 1e-7) << expected.name;
    EXPECT_NEAR(values.sum().item<double>(), expected.sum,
                1e-5 + 1e-9 * static_cast<double>(values.numel()))
        << expected.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, InitialWeights, ::testing::ValuesIn(kPython),
                         [](const auto& info) {
                           std::string name = info.param.recipe;
                           std::erase(name, '-');  // no name of a test may have one
                           return name;
                         });

}  // namespace
}  // namespace lockstep
