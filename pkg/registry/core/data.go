package core

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"maps"
	"reflect"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/rsakeys"
)

const maxDataSize = corev1.MaxSecretSize

var configMaps = &resource.Resource[*corev1.ConfigMap, *corev1.ConfigMapList]{
	ShortNames: []string{"cm"},
	Namespaced: true,
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

// ShareCA returns a codec that shares the content of all ConfigMaps with the root CA, to reduce memory.
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

var secrets = &resource.Resource[*corev1.Secret, *corev1.SecretList]{
	Namespaced: true,
	Default:    defaultSecret,
	Strategy: resource.Strategy[*corev1.Secret]{
		PrepareForUpdate: func(_ context.Context, secret, old *corev1.Secret) {
			if secret.Type == "" {
				secret.Type = old.Type
			}
		},
		Validate:            func(_ context.Context, secret *corev1.Secret) field.ErrorList { return validateSecret(secret) },
		ValidateUpdate:      validateSecretUpdate,
		Warnings:            secretWarnings,
		UnconditionalUpdate: true,
	},
	Selectable: func(secret *corev1.Secret) fields.Set {
		return fields.Set{"type": string(secret.Type)}
	},
	Columns: []resource.Column[*corev1.Secret]{
		resource.NameColumn[*corev1.Secret](),
		{
			Name:        "Type",
			Description: corev1.Secret{}.SwaggerDoc()["type"],
			Cell:        func(secret *corev1.Secret) any { return string(secret.Type) },
		},
		{
			Name:        "Data",
			Description: corev1.Secret{}.SwaggerDoc()["data"],
			Cell:        func(secret *corev1.Secret) any { return int64(len(secret.Data)) },
		},
		resource.AgeColumn[*corev1.Secret](),
	},
}

// defaultSecret moves stringData into data on decoding, so that no field manager ever owns stringData.
func defaultSecret(secret *corev1.Secret) {
	if secret.Type == "" {
		secret.Type = corev1.SecretTypeOpaque
	}
	if len(secret.StringData) > 0 {
		// The map may be shared with the object that this one was converted from.
		data := make(map[string][]byte, len(secret.Data)+len(secret.StringData))
		maps.Copy(data, secret.Data)
		for key, value := range secret.StringData {
			data[key] = []byte(value)
		}
		secret.Data = data
	}
	secret.StringData = nil
}

func validateSecret(secret *corev1.Secret) field.ErrorList {
	errs := validate.ObjectMeta(secret, true, apivalidation.NameIsDNSSubdomain)
	data := field.NewPath("data")
	errs, size := validateData(errs, secret.Data, data)
	if size > maxDataSize {
		errs = append(errs, field.TooLong(data, "", maxDataSize))
	}
	return append(errs, validateSecretType(secret, data)...)
}

func validateSecretType(secret *corev1.Secret, data *field.Path) field.ErrorList {
	switch secret.Type {
	case corev1.SecretTypeServiceAccountToken:
		// The token and the account's uid may be added by a controller later.
		if secret.Annotations[corev1.ServiceAccountNameKey] == "" {
			path := field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey)
			return field.ErrorList{field.Required(path, "")}
		}
	case corev1.SecretTypeDockercfg:
		return validateJSONKey(secret, data, corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		return validateJSONKey(secret, data, corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		_, username := secret.Data[corev1.BasicAuthUsernameKey]
		_, password := secret.Data[corev1.BasicAuthPasswordKey]
		if !username && !password {
			return field.ErrorList{
				field.Required(data.Key(corev1.BasicAuthUsernameKey), ""),
				field.Required(data.Key(corev1.BasicAuthPasswordKey), ""),
			}
		}
	case corev1.SecretTypeSSHAuth:
		if len(secret.Data[corev1.SSHAuthPrivateKey]) == 0 {
			return field.ErrorList{field.Required(data.Key(corev1.SSHAuthPrivateKey), "")}
		}
	case corev1.SecretTypeTLS:
		var errs field.ErrorList
		for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
			if _, ok := secret.Data[key]; !ok {
				errs = append(errs, field.Required(data.Key(key), ""))
			}
		}
		return errs
	default:
		// Opaque and user-defined types have no required keys.
	}
	return nil
}

func validateJSONKey(secret *corev1.Secret, data *field.Path, key string) field.ErrorList {
	value, ok := secret.Data[key]
	if !ok {
		return field.ErrorList{field.Required(data.Key(key), "")}
	}
	if err := json.Unmarshal(value, &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(data.Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}

func validateSecretUpdate(_ context.Context, secret, old *corev1.Secret) field.ErrorList {
	errs := validate.ObjectMetaUpdate(secret, old)
	errs = append(errs, apivalidation.ValidateImmutableField(secret.Type, old.Type, field.NewPath("type"))...)
	var changed []string
	if !reflect.DeepEqual(secret.Data, old.Data) {
		changed = append(changed, "data")
	}
	errs = append(errs, validate.Frozen(secret.Immutable, old.Immutable, changed...)...)
	return append(errs, validateSecret(secret)...)
}

func secretWarnings(_ context.Context, secret *corev1.Secret) []string {
	if secret.Type != corev1.SecretTypeTLS {
		return nil
	}
	if err := rsakeys.CheckPrivate(secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	if _, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}
