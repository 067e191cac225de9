// Stan's base class of models with no more than is used here. Stan's own instantiates the log density sixteen times
// (values, gradients and Hessians, with and without constants and Jacobians, two kinds of vectors), which takes most of
// the time that compiling a program takes.
#define STAN_MODEL_MODEL_BASE_HPP
#define STAN_MODEL_MODEL_BASE_CRTP_HPP
#include <stan/io/var_context.hpp>
#include <stan/math.hpp>
#include <stan/model/prob_grad.hpp>
#include <stan/services/util/create_rng.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace stan {
namespace model {

class model_base : public prob_grad {
 public:
  explicit model_base(size_t num_params_r) : prob_grad(num_params_r) {}
  virtual ~model_base() {}
  virtual std::string model_name() const = 0;
  virtual std::vector<std::string> model_compile_info() const = 0;
  virtual void get_param_names(std::vector<std::string>&, bool, bool) const = 0;
  virtual void get_dims(std::vector<std::vector<size_t>>&, bool, bool) const = 0;
  virtual void constrained_param_names(std::vector<std::string>&, bool, bool) const = 0;
  virtual void unconstrained_param_names(std::vector<std::string>&, bool, bool) const = 0;
  virtual void transform_inits(const io::var_context&, Eigen::VectorXd&, std::ostream*) const = 0;
  virtual math::var log_density(Eigen::Matrix<math::var, -1, 1>&) const = 0;
  virtual void write(stan::rng_t&, Eigen::VectorXd&, Eigen::VectorXd&, bool transformed, bool generated) const = 0;
  virtual void unconstrain(const Eigen::VectorXd&, Eigen::VectorXd&) const = 0;
};

template <typename M>
class model_base_crtp : public model_base {
 public:
  explicit model_base_crtp(size_t num_params_r) : model_base(num_params_r) {}
  math::var log_density(Eigen::Matrix<math::var, -1, 1>& x) const override {
    return static_cast<const M*>(this)->template log_prob<true, true>(x, nullptr);
  }
  void write(
      stan::rng_t& rng, Eigen::VectorXd& x, Eigen::VectorXd& values, bool transformed, bool generated) const override {
    static_cast<const M*>(this)->write_array(rng, x, values, transformed, generated, nullptr);
  }
  void unconstrain(const Eigen::VectorXd& values, Eigen::VectorXd& x) const override {
    static_cast<const M*>(this)->unconstrain_array(values, x, nullptr);
  }
};

}  // namespace model
}  // namespace stan
