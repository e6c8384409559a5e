// Package core describes the resources of the core API group: namespaces,
// config maps, secrets and service accounts, one file each.
package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

// maxDataSize is the most that all values of a config map or secret may hold.
const maxDataSize = corev1.MaxSecretSize

// Group returns the core group. Events, which also belong to it, are described
// in the package events.
func Group(more ...resource.Definition) resource.Group {
	return resource.Group{
		GroupVersion: corev1.SchemeGroupVersion,
		Resources:    append([]resource.Definition{namespaces, configMaps, secrets, serviceAccounts}, more...),
	}
}
