// Log density, gradient and constrained values of a Stan model, for ctypes. Compiled together with stanc's output.
#include <stan/io/json/json_data.hpp>
#include <stan/math.hpp>
#include <stan/services/util/create_rng.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace {

void say(const std::string& text, char* out, int size) {
  std::strncpy(out, text.c_str(), size - 1);
  out[size - 1] = 0;
}

stan::model::model_base& as_model(void* model) { return *static_cast<stan::model::model_base*>(model); }

// Stan's autodiff stack is one per thread, and JAX calls from threads of its own.
void ready() { static thread_local stan::math::ChainableStack stack; }

}  // namespace

extern "C" {

void* sm_create(const char* path, unsigned int seed, char* error, int size) {
  ready();
  try {
    std::ifstream file(path);
    stan::json::json_data data(file);
    std::ostringstream messages;
    return &new_model(data, seed, &messages);
  } catch (const std::exception& e) {
    say(e.what(), error, size);
    return nullptr;
  }
}

int sm_dim(void* model) { return as_model(model).num_params_r(); }

// Lines "name size size ..." of the parameters and, where asked for, of transformed parameters and generated quantities.
void sm_shapes(void* model, int transformed, int generated, char* out, int size) {
  std::vector<std::string> names;
  std::vector<std::vector<size_t>> dims;
  as_model(model).get_param_names(names, transformed, generated);
  as_model(model).get_dims(dims, transformed, generated);
  std::ostringstream text;
  for (size_t i = 0; i < names.size(); ++i) {
    text << names[i];
    for (size_t d : dims[i]) text << ' ' << d;
    text << '\n';
  }
  say(text.str(), out, size);
}

// n points; nan where the model rejects one.
void sm_log_density(void* model, const double* x, int n, int d, double* values, double* gradients) {
  ready();
  for (int i = 0; i < n; ++i) {
    try {
      stan::math::nested_rev_autodiff nested;
      Eigen::Matrix<stan::math::var, -1, 1> point(d);
      for (int j = 0; j < d; ++j) point(j) = x[i * d + j];
      stan::math::var value = as_model(model).log_density(point);
      values[i] = value.val();
      value.grad();
      for (int j = 0; j < d; ++j) gradients[i * d + j] = point(j).adj();
    } catch (const std::exception&) {
      values[i] = std::numeric_limits<double>::quiet_NaN();
      for (int j = 0; j < d; ++j) gradients[i * d + j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// k values of each point: parameters and transformed parameters and, where asked for, generated quantities.
void sm_constrain(
    void* model, const double* x, int n, int d, int k, int generated, unsigned int seed, double* out) {
  ready();
  auto rng = stan::services::util::create_rng(seed, 1);
  for (int i = 0; i < n; ++i) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(x + i * d, d);
    Eigen::VectorXd values;
    try {
      as_model(model).write(rng, point, values, true, generated);
      for (int j = 0; j < k; ++j) out[i * k + j] = values(j);
    } catch (const std::exception&) {
      for (int j = 0; j < k; ++j) out[i * k + j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

// The inverse, of the k values of the parameters alone.
void sm_unconstrain(void* model, const double* values, int n, int d, int k, double* out) {
  ready();
  for (int i = 0; i < n; ++i) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(values + i * k, k);
    Eigen::VectorXd x;
    try {
      as_model(model).unconstrain(point, x);
      for (int j = 0; j < d; ++j) out[i * d + j] = x(j);
    } catch (const std::exception&) {
      for (int j = 0; j < d; ++j) out[i * d + j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

}  // extern "C"
