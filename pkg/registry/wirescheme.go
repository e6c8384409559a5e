package registry

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// WireScheme returns a scheme with the types of Scheme and of other schemes that a server serves, without the internal
// version. The namer of OpenAPI definitions must be created with it. With Scheme itself, the documents would contain the
// internal version, which has the same Go types as the wire version.
func WireScheme(more ...*runtime.Scheme) *runtime.Scheme {
	wire := runtime.NewScheme()
	for _, scheme := range append([]*runtime.Scheme{Scheme}, more...) {
		for gvk, goType := range scheme.AllKnownTypes() {
			if gvk.Version == runtime.APIVersionInternal {
				continue
			}
			if object, ok := reflect.TypeAssert[runtime.Object](reflect.New(goType)); ok {
				wire.AddKnownTypeWithName(gvk, object)
			}
		}
	}
	return wire
}
