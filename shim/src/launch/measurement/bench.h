// Measures how fast the permitted CPUs multiply matrices in single precision and copy memory, in an image without a
// usable Python. It stands in for agent/falcon_bench, and has the same form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace falcon {

// A square product: `out` = `left` × `right`, row by row.
void multiply(const std::vector<float>& left, const std::vector<float>& right, std::vector<float>* out, int size);

// How far some rows of `out` are from the product in double precision, by its largest entry there.
double error_of(const std::vector<float>& left, const std::vector<float>& right, const std::vector<float>& out,
                int size);

// Measures for so long; one line of JSON, as falcon_bench prints it.
std::string bench_json(int milliseconds);

// Multiplies for a fifth of a second: the rate of the best tenth of it, of all permitted CPUs together, so that what
// disturbs a machine for a moment does not count against it. In the same form; only machines with as many permitted
// CPUs have the same device. A tenth of a second is a period of a CPU quota, which shows in each.
std::string smoke_json();

}  // namespace falcon
