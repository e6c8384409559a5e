// Package merged is the admission plugin that replaces merged resourceVersions in updates.
//
// Objects in a response of the front-proxy for all shards have a merged version. If a client writes such an
// object back, the part of the version that belongs to this shard becomes the version of the object, before
// other plugins run and before storage compares it.
package merged

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
)

type plugin struct {
	own func(version string) (string, error)
}

// NewMerged returns the plugin. own returns the part of a resourceVersion that belongs to this shard, or an error.
func NewMerged(own func(version string) (string, error)) admission.MutationInterface {
	return plugin{own}
}

func (plugin) Handles(operation admission.Operation) bool { return operation == admission.Update }

func (p plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // without a version there is nothing to replace
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
