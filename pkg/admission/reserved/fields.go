package reserved

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

var (
	errStatus  = errors.New("the status is what the system has observed: only the system may write it")
	errNotMade = errors.New("logical clusters are made by the system: create a Workspace")
	errOwned   = errors.New("a logical cluster goes with the Workspace that owns it: delete that (spec.directlyDeletable is not set)")
)

// workspaceFields are the fields of a Workspace that only the system sets.
var workspaceFields = [][]string{{"spec", "cluster"}, {"spec", "URL"}}

// logicalClusterFields are the fields of a LogicalCluster that only the system
// sets: all that say what it is.
var logicalClusterFields = [][]string{{"spec"}}

func checkWorkspace(a admission.Attributes) error {
	switch {
	case a.GetOperation() == admission.Delete:
		return nil
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	default:
		return unchanged(a, workspaceFields)
	}
}

func checkLogicalCluster(a admission.Attributes) error {
	switch {
	case a.GetOperation() == admission.Create:
		return admission.NewForbidden(a, errNotMade)
	case a.GetOperation() == admission.Delete:
		if direct, found := field(a.GetOldObject(), "spec", "directlyDeletable"); !found || direct != true {
			return admission.NewForbidden(a, errOwned)
		}
		return nil
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	default:
		return unchanged(a, logicalClusterFields)
	}
}

func unchangedStatus(a admission.Attributes) error {
	now, _ := field(a.GetObject(), "status")
	before, _ := field(a.GetOldObject(), "status")
	if equality.Semantic.DeepEqual(now, before) {
		return nil
	}
	return admission.NewForbidden(a, errStatus)
}

// unchanged denies a write that sets, changes or removes one of the fields.
func unchanged(a admission.Attributes, fields [][]string) error {
	for _, path := range fields {
		now, _ := field(a.GetObject(), path...)
		before, _ := field(a.GetOldObject(), path...)
		if !equality.Semantic.DeepEqual(now, before) {
			return admission.NewForbidden(a, fmt.Errorf("%s is set by the system: leave it as it is", strings.Join(path, ".")))
		}
	}
	return nil
}

// field returns a field of a custom resource, which both kinds are.
func field(obj runtime.Object, path ...string) (any, bool) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || u == nil {
		return nil, false
	}
	value, found, err := unstructured.NestedFieldNoCopy(u.Object, path...)
	return value, found && err == nil
}
