// Package admissionregistration describes the resources that restrict or change writes to a logical cluster: webhook
// configurations, and mutating and validating policies with their bindings. Expressions, selectors and URLs of stored
// objects are valid. Package admission enforces them.
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
