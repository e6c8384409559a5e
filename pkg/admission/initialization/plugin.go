// Package initialization is the admission plugin of what initializers and terminators of
// workspace types write into LogicalClusters, through their views: they take themselves
// off the list of what it waits for, and say in conditions how it goes.
package initialization

import (
	"context"
	"fmt"
	"slices"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

// Plugin implements admission.ValidationInterface.
type Plugin struct{ *admission.Handler }

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin.
func New() *Plugin { return &Plugin{admission.NewHandler(admission.Update)} }

// Field returns the field of the status of a LogicalCluster that lists what it waits for,
// of the kind that a request comes for through a view; empty where it comes by none.
func Field(ctx context.Context) string {
	through, _ := request.ThroughFrom(ctx)
	switch through.Mount {
	case request.InitializingWorkspaces:
		return "initializers"
	case request.TerminatingWorkspaces:
		return "terminators"
	default:
		return ""
	}
}

// Validate implements admission.ValidationInterface.
func (*Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	list := Field(ctx)
	if list == "" || a.GetResource().GroupResource() != corev1alpha1.Resource("logicalclusters") {
		return nil
	}
	through, _ := request.ThroughFrom(ctx)
	own := through.Provider.Path().Join(through.VirtualWorkspace).String()
	before, after := statusOf(a.GetOldObject()), statusOf(a.GetObject())
	waitedFor, _, _ := unstructured.NestedStringSlice(before, list)
	waitsFor, _, _ := unstructured.NestedStringSlice(after, list)
	without := slices.DeleteFunc(slices.Clone(waitedFor), func(id string) bool { return id == own })
	path := field.NewPath("status")
	var errs field.ErrorList
	if !slices.Equal(waitsFor, waitedFor) && !slices.Equal(waitsFor, without) {
		errs = append(errs, field.Invalid(path.Child(list), waitsFor, fmt.Sprintf("through this view nothing changes but that %s is removed", own)))
	}
	for _, status := range []map[string]any{before, after} {
		delete(status, list)
		delete(status, "conditions")
	}
	if !equality.Semantic.DeepEqual(before, after) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("through this view nothing of the status changes but %s and conditions", list)))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(corev1alpha1.Kind("LogicalCluster"), a.GetName(), errs)
	}
	return nil
}

// statusOf returns a copy of a status.
func statusOf(obj runtime.Object) map[string]any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	return status
}
