package versions

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// FuzzPlainMetadata: the codec does not change metadata that skip it. The seeds specify whether they may skip
// it.
func FuzzPlainMetadata(f *testing.F) {
	const head = `{"name":"a","uid":"u","resourceVersion":"1","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z"`
	plain := []string{
		head + `}`,
		`{"name":"a","uid":"u","creationTimestamp":"2026-01-02T03:04:05Z"}`, // e.g. of a role
		head + `,"namespace":"n","generateName":"a-","selfLink":"/a","labels":{"a":"b","c":""},"annotations":{"a":""},"finalizers":["x",""]}`,
		head + `,"deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":0}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"","uid":"u","controller":false,"blockOwnerDeletion":true}]}`,
		head + `,"managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"k:{\"a\":1}":{}}},"subresource":"status"}]}`,
		head + `,"managedFields":[{}]}`,
	}
	other := []string{
		`{}`, `{"name":"a"}`,
		`{"name":"a","generation":1}`,
		`{"name":"a","generation":0,"creationTimestamp":"2026-01-02T03:04:05Z"}`,
		`{"name":"a","generation":1.5,"creationTimestamp":"2026-01-02T03:04:05Z"}`,
		`{"name":"a","generation":1,"creationTimestamp":null}`,
		`{"name":"a","generation":1,"creationTimestamp":"0001-01-01T00:00:00Z"}`,
		`{"name":"a","generation":1,"creationTimestamp":"2026-01-02T03:04:05+01:00"}`,
		`{"name":"a","generation":1,"creationTimestamp":"2026-01-02T03:04:05.5Z"}`,
		head + `,"clusterName":"c"}`, head + `,"namespace":""}`, head + `,"namespace":7}`,
		head + `,"labels":{}}`, head + `,"labels":{"a":1}}`, head + `,"annotations":null}`, head + `,"annotations":["a"]}`,
		head + `,"finalizers":[]}`, head + `,"finalizers":[1]}`, head + `,"finalizers":"x"}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n"}]}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","controller":null}]}`,
		head + `,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n","uid":"u","more":1}]}`,
		head + `,"managedFields":[{"manager":""}]}`, head + `,"managedFields":[{"time":"x"}]}`, head + `,"managedFields":[{"more":{}}]}`,
		head + `,"managedFields":[{"fieldsV1":{"f:a":1.50}}]}`, head + `,"managedFields":[{"fieldsV1":null}]}`, head + `,"managedFields":["m"]}`,
		head + `,"deletionGracePeriodSeconds":1.5}`,
	}
	for _, text := range plain {
		f.Add([]byte(text))
	}
	for _, text := range other {
		f.Add([]byte(text))
	}
	isPlain := func(text []byte) (metadata map[string]any, plain bool) {
		u := &unstructured.Unstructured{}
		if u.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"K","metadata":`+string(text)+`}`)) != nil {
			return nil, false
		}
		metadata, _ = u.Object["metadata"].(map[string]any)
		return metadata, isPlainMetadata(metadata)
	}
	for _, text := range plain {
		_, is := isPlain([]byte(text))
		require.True(f, is, text)
	}
	for _, text := range other {
		_, is := isPlain([]byte(text))
		require.False(f, is, text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		metadata, is := isPlain(text)
		if !is {
			return
		}
		object := map[string]any{"metadata": runtime.DeepCopyJSON(metadata)}
		read, found, err := objectmeta.GetObjectMeta(object, true)
		require.NoError(t, err)
		require.True(t, found)
		require.NoError(t, objectmeta.SetObjectMeta(object, read))
		require.Equal(t, map[string]any{"metadata": metadata}, object)
	})
}
