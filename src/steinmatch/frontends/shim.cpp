// Log density, gradient and constrained values of a Stan model, for ctypes. Compiled together with stanc's output.
#include <stan/io/json/json_data.hpp>
#include <stan/math.hpp>
#include <stan/model/model_base.hpp>
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

// Lines "name size size ..." of the parameters and transformed parameters.
void sm_shapes(void* model, char* out, int size) {
  std::vector<std::string> names;
  std::vector<std::vector<size_t>> dims;
  as_model(model).get_param_names(names, true, false);
  as_model(model).get_dims(dims, true, false);
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
      stan::math::var value = as_model(model).log_prob_propto_jacobian(point, nullptr);
      values[i] = value.val();
      value.grad();
      for (int j = 0; j < d; ++j) gradients[i * d + j] = point(j).adj();
    } catch (const std::exception&) {
      values[i] = std::numeric_limits<double>::quiet_NaN();
      for (int j = 0; j < d; ++j) gradients[i * d + j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

void sm_constrain(void* model, const double* x, int n, int d, int k, double* out) {
  ready();
  auto rng = stan::services::util::create_rng(0, 1);
  for (int i = 0; i < n; ++i) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(x + i * d, d);
    Eigen::VectorXd values;
    try {
      as_model(model).write_array(rng, point, values, true, false, nullptr);
      for (int j = 0; j < k; ++j) out[i * k + j] = values(j);
    } catch (const std::exception&) {
      for (int j = 0; j < k; ++j) out[i * k + j] = std::numeric_limits<double>::quiet_NaN();
    }
  }
}

}  // extern "C"
