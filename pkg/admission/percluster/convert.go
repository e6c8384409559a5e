package percluster

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

// Pausing returns what upstream's plugins convert objects with, so that the request of ctx has no seat while
// a custom resource is converted, see request.Pause: its webhook may take long, and is called without a context.
func Pausing(ctx context.Context, o admission.ObjectInterfaces) admission.ObjectInterfaces {
	return pausing{o, ctx}
}

type pausing struct {
	admission.ObjectInterfaces
	ctx context.Context //nolint:containedctx // of the one request; the interface has none
}

// GetObjectConvertor implements admission.ObjectInterfaces.
func (p pausing) GetObjectConvertor() runtime.ObjectConvertor {
	return convertor{p.ObjectInterfaces.GetObjectConvertor(), p.ctx}
}

type convertor struct {
	runtime.ObjectConvertor
	ctx context.Context //nolint:containedctx // as above
}

// Convert implements runtime.ObjectConvertor.
func (c convertor) Convert(in, out, meta any) error {
	if _, custom := in.(*unstructured.Unstructured); custom {
		defer request.Pause(c.ctx)()
	}
	return c.ObjectConvertor.Convert(in, out, meta)
}
