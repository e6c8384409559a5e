package policy

import (
	"context"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/mutation"
	"k8s.io/apiserver/pkg/cel/mutation/dynamic"

	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

const (
	// maxPatchSize limits the patchSize of a patch that a policy computes. It is the size of the largest request, and
	// the limit of the copy operation.
	//
	//reference:limit request | admission policies: size of a computed patch | the policy fails
	maxPatchSize = 3 << 20
	// sizeOfValue is added to the size for each value of a patch.
	sizeOfValue = 8
)

// limitedPatches rejects patches that are expensive to apply. CEL counts a reference to a list as one,
// although the patch contains all elements of the list. Upstream applies patches without the context of the
// request.
type limitedPatches struct{ cel.MutatingEvaluator }

func (l limitedPatches) ForInput(ctx context.Context, a *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, variables cel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64) (cel.EvaluationResult, int64, error) {
	result, remaining, err := l.MutatingEvaluator.ForInput(ctx, a, request, variables, namespace, budget)
	if err != nil || result.Error != nil {
		return result, remaining, err
	}
	// There may be a thousand more patches, and each is applied without interruption.
	if err = ctx.Err(); err == nil {
		_, isConfiguration := result.EvalResult.(*dynamic.ObjectVal)
		patch := patchSize{configuration: isConfiguration}
		patch.add(result.EvalResult)
		err = patch.check()
	}
	if err != nil {
		return cel.EvaluationResult{}, -1, err
	}
	return result, remaining, nil
}

// patchSize is the cost of applying a patch.
type patchSize struct {
	// size is the number of bytes in strings, plus sizeOfValue for each value.
	size int
	// shifts is the number of operations of a JSON patch that shift the elements of a list.
	shifts int
	// entries is the number of entries in lists of an apply configuration, which are compared with those of the object.
	entries       int
	configuration bool
}

func (p *patchSize) check() error {
	switch {
	case p.size > maxPatchSize:
		return fmt.Errorf("the patch is larger than %d bytes: do not repeat large values in it", maxPatchSize)
	case p.entries > patchcosts.MaxKeyed:
		return fmt.Errorf("the lists of the apply configuration have more than %d entries: use a JSON patch", patchcosts.MaxKeyed)
	default:
		return patchcosts.CheckShifts(p.shifts)
	}
}

// add adds the cost of a value. It stops if a limit is exceeded.
func (p *patchSize) add(value ref.Val) {
	p.size += sizeOfValue
	switch value := value.(type) {
	case types.String:
		p.size += len(value)
	case types.Bytes:
		p.size += len(value)
	case *mutation.JSONPatchVal:
		p.size += len(value.Op) + len(value.Path) + len(value.From)
		p.shifts += patchcosts.Shifts(value.Op, value.Path, value.From)
		if value.Val != nil {
			p.add(value.Val)
		}
	case *types.Optional:
		if value.HasValue() {
			p.add(value.GetValue())
		}
	case *dynamic.ObjectVal:
		for name, field := range fieldsOf(value) {
			p.size += len(name)
			p.add(field)
		}
	case traits.Mapper:
		for it := value.Iterator(); it.HasNext() == types.True && p.check() == nil; {
			key := it.Next()
			p.add(key)
			p.add(value.Get(key))
		}
	case traits.Lister:
		for it := value.Iterator(); it.HasNext() == types.True && p.check() == nil; {
			p.add(it.Next())
			if p.configuration {
				p.entries++
			}
		}
	}
}

// fieldsOf returns the fields of an object that an expression constructs. Upstream exports only a method that
// converts and copies all of them.
func fieldsOf(object *dynamic.ObjectVal) map[string]ref.Val {
	fields := reflect.ValueOf(object).Elem().FieldByName("fields")
	return *(*map[string]ref.Val)(unsafe.Pointer(fields.UnsafeAddr()))
}
