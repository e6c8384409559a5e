package core

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
)

const maxDataSize = corev1.MaxSecretSize

var configMaps = &resource.Resource[*corev1.ConfigMap]{
	Name:       "configmaps",
	Singular:   "configmap",
	Kind:       "ConfigMap",
	ShortNames: []string{"cm"},
	Namespaced: true,
	New:        func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
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
	errs := validate.ObjectMeta(&cm.ObjectMeta, true, apivalidation.NameIsDNSSubdomain)
	data, binaryData := field.NewPath("data"), field.NewPath("binaryData")
	size := 0
	for key, value := range cm.Data {
		if len(errs) > request.MaxErrors {
			break
		}
		errs = append(errs, validate.DataKey(key, data)...)
		if _, ok := cm.BinaryData[key]; ok {
			errs = append(errs, field.Invalid(data.Key(key), key, "duplicate of key present in binaryData"))
		}
		size += len(value)
	}
	for key, value := range cm.BinaryData {
		if len(errs) > request.MaxErrors {
			break
		}
		errs = append(errs, validate.DataKey(key, binaryData)...)
		size += len(value)
	}
	if size > maxDataSize {
		// The empty path means that the object itself is too large.
		errs = append(errs, field.TooLong(field.NewPath(""), "", maxDataSize))
	}
	return errs
}

func validateConfigMapUpdate(_ context.Context, cm, old *corev1.ConfigMap) field.ErrorList {
	errs := validate.ObjectMetaUpdate(&cm.ObjectMeta, &old.ObjectMeta)
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
