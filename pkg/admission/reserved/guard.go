package reserved

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

// Mutator is a plugin with webhooks or policies of users of a logical cluster.
type Mutator interface {
	admission.MutationInterface
	// Applies reports whether any of them apply to the write.
	Applies(ctx context.Context, a admission.Attributes) bool
}

var errMutated = errors.New("a mutating webhook or policy changed reserved metadata or fields in a write of the system: it must not change them")

// Guard prevents a plugin from changing reserved metadata and fields in writes of the system. For other
// writes, Plugin rejects such changes afterwards, but it trusts the system.
func Guard(next Mutator) admission.MutationInterface { return guard{next} }

type guard struct{ Mutator }

func (g guard) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if level(ctx, a.GetUserInfo()) != system || !g.Applies(ctx, a) {
		return g.Mutator.Admit(ctx, a, o)
	}
	before := recordOf(a)
	if err := g.Mutator.Admit(ctx, a, o); err != nil {
		return err
	}
	if !reflect.DeepEqual(before, recordOf(a)) {
		return admission.NewForbidden(a, errMutated)
	}
	return nil
}

// record contains the reserved metadata and fields of an object.
type record struct {
	annotations, labels map[string]string
	finalizers          []string
	fields              []any
}

func recordOf(a admission.Attributes) record {
	obj, ok := metadataOf(a.GetObject())
	if !ok {
		return record{}
	}
	r := record{annotations: reservedIn(annotations, obj.GetAnnotations()), labels: reservedIn(labels, obj.GetLabels())}
	for _, key := range obj.GetFinalizers() {
		if _, reserved := lookUp(finalizers, key); reserved {
			r.finalizers = append(r.finalizers, key)
		}
	}
	if a.GetResource().GroupResource() == workspaces {
		for _, path := range append(slices.Clone(workspaceFields), []string{"status"}) {
			value, _ := field(a.GetObject(), path...)
			r.fields = append(r.fields, runtime.DeepCopyJSONValue(value)) // the plugin may change the original
		}
	}
	return r
}

func reservedIn(names []name, of map[string]string) map[string]string {
	out := maps.Clone(of)
	maps.DeleteFunc(out, func(key, _ string) bool {
		_, reserved := lookUp(names, key)
		return !reserved
	})
	if len(out) == 0 {
		return nil
	}
	return out
}
