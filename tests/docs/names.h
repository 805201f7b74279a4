// SPDX-License-Identifier: BSD-3-Clause
// The names that C++ of the documentation uses without declaring them. It is compiled and never
// linked or run, so nothing here is defined.
#pragma once

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <torch/data.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>
#include <torch/script.h>
#include <torch/utils.h>

#include "lockstep/lockstep.h"

extern std::shared_ptr<lockstep::ProcessGroup> group;
extern int rank;
extern int ranks;
extern std::int64_t epoch;
extern std::int64_t epochs;
extern std::int64_t step;
extern const std::string text;
extern const char* const folder;

// Float tensors {samples, features} and a scalar loss; the lists have a tensor for each rank.
extern at::Tensor x;
extern at::Tensor y;
extern at::Tensor loss;
extern std::vector<at::Tensor> xs;
extern std::vector<at::Tensor> ys;

// Whole tensors of a data set, and what yields their batches.
extern at::Tensor inputs;
extern at::Tensor labels;
extern at::Tensor weights;
extern lockstep::MnistDataset dataset;
extern lockstep::DistributedSampler sampler;
extern lockstep::MemoryLoader loader;
extern lockstep::DistributedSampler test_sampler;
extern lockstep::MemoryLoader test_loader;

extern torch::nn::Sequential net;
extern lockstep::DistributedDataParallel<torch::nn::Sequential> model;
extern lockstep::optim::Adam optimizer;
extern lockstep::optim::LRScheduler scheduler;
extern lockstep::ExponentialMovingAverage<torch::nn::Sequential> ema;
extern lockstep::GradScaler scaler;
extern lockstep::Trainer<torch::nn::Sequential> trainer;
extern lockstep::TensorBoardWriter writer;
extern lockstep::Evaluation result;

// The program's own functions.
double train(int rank);
at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target);
at::Tensor sum_of_losses(const at::Tensor& output, const at::Tensor& target);
