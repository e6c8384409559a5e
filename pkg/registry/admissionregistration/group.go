// Package admissionregistration describes the resources with which the users of
// a logical cluster say what may be written there: webhook configurations, and
// policies with their bindings, mutating and validating.
//
// What is stored here is valid: expressions compile, selectors parse, URLs are
// https. Who enforces it is the package admission.
package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// Group returns admissionregistration.k8s.io/v1.
func Group() resource.Group {
	return resource.Group{
		GroupVersion: admissionregistrationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			mutatingWebhooks,
			validatingWebhooks,
			mutatingPolicies,
			mutatingBindings,
			validatingPolicies,
			validatingBindings,
		},
	}
}
