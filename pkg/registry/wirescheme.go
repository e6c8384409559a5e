package registry

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// WireScheme returns a scheme of what clients may see of Scheme and of the
// schemes of other types that a server serves: everything but the internal
// version. A server must make the namer of its OpenAPI definitions from it.
// Made from Scheme itself the documents would name the internal version, which
// has the same Go types as the one on the wire.
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
