"""Custom autograd functions, checked with gradcheck and trained with."""
import torch
from torch.autograd import Function, gradcheck
from torch.cuda.amp import custom_bwd, custom_fwd


class Swish(Function):
    """Saves its input only, to save memory."""

    @staticmethod
    def forward(ctx, i):
        result = i * i.sigmoid()
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i, = ctx.saved_tensors
        sigmoid_i = i.sigmoid()
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))


class StraightThroughRound(Function):
    @staticmethod
    def forward(ctx, x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class FusedLinear(Function):
    @staticmethod
    @custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        out = x.new_empty(x.size(0), weight.size(0))
        torch.mm(x, weight.t(), out=out)
        out += bias
        return out

    @staticmethod
    @custom_bwd
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_out.mm(weight)
        if ctx.needs_input_grad[1]:
            grad_weight = grad_out.t().mm(x)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_out.sum(0)
        return grad_x, grad_weight, grad_bias


class Layer(torch.nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(n_out, n_in))
        self.bias = torch.nn.Parameter(torch.zeros(n_out))
        torch.nn.init.kaiming_uniform_(self.weight, a=5 ** 0.5)

    def forward(self, x):
        return FusedLinear.apply(x, self.weight, self.bias)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(6, 20), Layer(20, 1)

    def forward(self, x):
        return self.second(StraightThroughRound.apply(Swish.apply(self.first(x)), 8))


torch.manual_seed(5)
cuda = torch.device('cuda')

inp = torch.randn(5, 3, dtype=torch.double).to(cuda).requires_grad_()
assert gradcheck(Swish.apply, (inp,), eps=1e-6, atol=1e-4)
w = torch.randn(2, 3, dtype=torch.double).to(cuda).requires_grad_()

net = Net().to(cuda)
data = torch.randn(64, 6).to(cuda)
goal = data.pow(2).sum(1, keepdim=True)
opt = torch.optim.RMSprop(net.parameters(), lr=0.01)
for _ in range(25):
    opt.zero_grad()
    with torch.cuda.amp.autocast():
        out = net(data)
    loss = torch.nn.functional.mse_loss(out.float(), goal)
    loss.backward()
    opt.step()

print('loss', round(loss.item(), 5))
print('grad', round(net.first.weight.grad.norm().item(), 5))
