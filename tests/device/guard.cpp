// Tells a CPU-only build of torch that CUDA devices 0 and 1 are there: a device guard that does nothing (autograd asks
// it where a gradient lies) and hooks that say yes. No kernel is registered: simulated.py catches every operation.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static thread_local int current;
  static DeviceIndex index(Device device) { return device.has_index() ? device.index() : 0; }
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    Device before(DeviceType::CUDA, current);
    current = index(device);
    return before;
  }
  Device getDevice() const override { return Device(DeviceType::CUDA, current); }
  void setDevice(Device device) const override { current = index(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current = index(device); }
  Stream getStream(Device device) const override {
    return Stream(Stream::DEFAULT, Device(DeviceType::CUDA, index(device)));
  }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getNewStream(Device device, int) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};
thread_local int Guard::current = 0;
static c10::impl::DeviceGuardImplRegistrar registered(DeviceType::CUDA, new Guard());

struct CUDAHooks final : public at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 2; }
  int getNumGPUs() const override { return 2; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void deviceSynchronize(DeviceIndex) const override {}
};
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::CUDAHooks);
}
extern "C" int devices_are_simulated() { return at::hasCUDA() ? 1 : 0; }
