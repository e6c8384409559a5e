package storage

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/storage"
)

// Attributes compute labels and fields for the selectors of lists and watches, in addition to those that
// the watch cache keeps of every object. They are computed on demand, only for objects in the scope of the
// request, and are not cached. They can be used concurrently.
type Attributes struct {
	// Get returns the attributes of an object. It is called while events of the resource are pending, so
	// it must be quick, must not block, and must not change the object.
	Get storage.AttrFunc
}

// Select returns list or watch options with selectors that match the attributes. Watches with the same
// pointer share the computed attributes of an event.
func (a *Attributes) Select(opts storage.ListOptions) storage.ListOptions {
	if opts.Predicate.Field == nil {
		opts.Predicate.Field = fields.Everything()
	}
	opts.Predicate.Field = attributesSelector{Selector: opts.Predicate.Field, attributes: a}
	opts.Predicate.GetAttrs = a.Get
	return opts
}

// attributesSelector carries attributes through storage.Interface.
type attributesSelector struct {
	fields.Selector

	attributes *Attributes
}

// takeAttributes removes the attributes from a predicate and returns them.
func takeAttributes(pred *storage.SelectionPredicate) *Attributes {
	carrier, ok := pred.Field.(attributesSelector)
	if !ok {
		return nil
	}
	pred.Field = carrier.Selector
	return carrier.attributes
}
