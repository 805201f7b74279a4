// SPDX-License-Identifier: BSD-3-Clause
// Hosts that are network namespaces of this machine, in one network of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::testing {

// Needs root. Each host has one interface, and nothing else but loopback.
class Hosts {
 public:
  // Why there can be none here; empty if there can.
  static std::string why_not();

  // Connected by a bridge, each with so many megabits a second out.
  Hosts(int count, int megabits);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string address(int host);
  // Has that host know an address by a name, instead of what this machine's /etc/hosts says.
  void name(int host, const std::string& name, const std::string& address) const;
  // The command as it runs on that host.
  std::vector<std::string> on(int host, std::vector<std::string> command) const;
  // That its interface has sent so far.
  std::int64_t bytes_sent(int host) const;
  // What limits its sending from now on, as tc says it: "netem delay 5ms loss 1%". False if the
  // kernel has no such discipline.
  bool shape(int host, const std::string& discipline) const;
  // By what limits its sending.
  std::int64_t packets_dropped(int host) const;
  void cut(int host) const;

 private:
  void make(int megabits) const;
  void remove() const;
  std::string space(int host) const;

  int count_;
  std::string name_;
};

}  // namespace lockstep::testing
