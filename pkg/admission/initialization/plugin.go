// Package initialization is the admission plugin for updates of LogicalClusters through the virtual
// workspaces of initializers and terminators. They may only remove themselves from the status and set
// conditions.
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

// NewInitialization returns the plugin.
func NewInitialization() *Plugin { return &Plugin{admission.NewHandler(admission.Update)} }

// Field returns the field of the status of a LogicalCluster that a request through the virtual workspace of
// an initializer or terminator may change, or "" for other requests.
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
		errs = append(errs, field.Invalid(path.Child(list), waitsFor, fmt.Sprintf("only %s may be removed through this virtual workspace", own)))
	}
	for _, status := range []map[string]any{before, after} {
		delete(status, list)
		delete(status, "conditions")
	}
	if !equality.Semantic.DeepEqual(before, after) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("only %s and conditions may be changed through this virtual workspace", list)))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(corev1alpha1.Kind("LogicalCluster"), a.GetName(), errs)
	}
	return nil
}

func statusOf(obj runtime.Object) map[string]any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	return status
}
