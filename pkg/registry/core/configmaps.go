package core

import (
	"context"
	"reflect"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

const maxDataSize = corev1.MaxSecretSize

var configMaps = &resource.Resource[*corev1.ConfigMap]{
	Name:       "configmaps",
	Kind:       "ConfigMap",
	ShortNames: []string{"cm"},
	Namespaced: true,
	NewList:    func() runtime.Object { return &corev1.ConfigMapList{} },
	Strategy: resource.Strategy[*corev1.ConfigMap]{
		Validate:            func(_ context.Context, cm *corev1.ConfigMap) field.ErrorList { return validateConfigMap(cm) },
		ValidateUpdate:      validateConfigMapUpdate,
		UnconditionalUpdate: true,
	},
	Columns: []resource.Column[*corev1.ConfigMap]{
		resource.NameColumn[*corev1.ConfigMap](),
		{
			Name:        "Data",
			Description: corev1.ConfigMap{}.SwaggerDoc()["data"],
			Cell:        func(cm *corev1.ConfigMap) any { return int64(len(cm.Data) + len(cm.BinaryData)) },
		},
		resource.AgeColumn[*corev1.ConfigMap](),
	},
}

func validateConfigMap(cm *corev1.ConfigMap) field.ErrorList {
	errs := validate.ObjectMeta(cm, true, apivalidation.NameIsDNSSubdomain)
	data := field.NewPath("data")
	errs, size := validateData(errs, cm.Data, data)
	for key := range cm.Data {
		if _, ok := cm.BinaryData[key]; ok && len(errs) <= request.MaxErrors {
			errs = append(errs, field.Invalid(data.Key(key), key, "duplicate of key present in binaryData"))
		}
	}
	errs, binarySize := validateData(errs, cm.BinaryData, field.NewPath("binaryData"))
	if size+binarySize > maxDataSize {
		// The empty path means that the object itself is too large.
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxDataSize))
	}
	return errs
}

// validateData validates the keys in the data of a config map or secret, and returns the size of the values.
func validateData[V ~string | ~[]byte](errs field.ErrorList, data map[string]V, path *field.Path) (_ field.ErrorList, size int) {
	for key, value := range data {
		if len(errs) > request.MaxErrors {
			break
		}
		errs = append(errs, validate.Messages(path.Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(value)
	}
	return errs, size
}

func validateConfigMapUpdate(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
	errs := validate.ObjectMetaUpdate(cm, old)
	var changed []string
	if !reflect.DeepEqual(cm.Data, old.Data) {
		changed = append(changed, "data")
	}
	if !reflect.DeepEqual(cm.BinaryData, old.BinaryData) {
		changed = append(changed, "binaryData")
	}
	errs = append(errs, validate.Frozen(cm.Immutable, old.Immutable, changed...)...)
	return append(errs, validateConfigMap(cm)...)
}

// rootCA is the name of the ConfigMap with the root CA, which exists in each namespace.
const rootCA = "kube-root-ca.crt"

// ShareCA returns a codec that shares the content of all ConfigMaps with the root CA, to reduce the memory of the watch
// cache.
func ShareCA(codec runtime.Codec) runtime.Codec { return caCodec{codec} }

type caCodec struct{ runtime.Codec }

func (c caCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if m, ok := obj.(*corev1.ConfigMap); ok && m.Name == rootCA {
		for key, value := range m.Data {
			m.Data[key] = unique.Make(value).Value()
		}
	}
	return obj, kind, err
}
