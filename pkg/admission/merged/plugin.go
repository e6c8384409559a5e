// Package merged reads merged resource versions of objects that are updated.
//
// Objects that the front-proxy answers of all shards have a version of all shards. Who
// writes such an object back means its part of this shard: it becomes the object's version,
// before others judge the object, and before it is compared with what is stored.
package merged

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
)

type plugin struct {
	own func(version string) (string, error)
}

// New returns the plugin. own returns what a resource version says to this shard, or
// the answer to one that says nothing.
func New(own func(version string) (string, error)) admission.MutationInterface { return plugin{own} }

// Handles implements admission.Interface.
func (plugin) Handles(operation admission.Operation) bool { return operation == admission.Update }

// Admit implements admission.MutationInterface.
func (p plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // what has no version asks for none
	}
	given := obj.GetResourceVersion()
	own, err := p.own(given)
	if err != nil {
		return err
	}
	if own != given {
		obj.SetResourceVersion(own)
	}
	return nil
}
