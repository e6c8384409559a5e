package storage

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/storage"
)

// Attributes compute what the selectors of lists and watches are matched with,
// where that is more than the attributes that the watch cache keeps of every
// object. They are computed when they are asked for, of the objects in the scope
// of the request only, and nothing is kept: whoever selects by them bears what
// they cost. They can be used concurrently.
type Attributes struct {
	// Get returns the attributes of an object. It is called while events of the
	// resource wait, so it must be quick, must not block, and must not change the
	// object.
	Get storage.AttrFunc
}

// Select returns the options of a list or watch with selectors that are matched
// with the attributes. Watches that share the attributes by their pointer share
// what is computed of an event.
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

// takeAttributes takes the attributes out of a predicate that has some.
func takeAttributes(pred *storage.SelectionPredicate) *Attributes {
	carrier, ok := pred.Field.(attributesSelector)
	if !ok {
		return nil
	}
	pred.Field = carrier.Selector
	return carrier.attributes
}
