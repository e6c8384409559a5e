package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// copyLabel is on what is to be copied.
	copyLabel = "workspace-sync.shardplane.io/copy"
	// byLabel is on copies, with --name.
	byLabel = "workspace-sync.shardplane.io/by"
	// hashAnnotation is on copies, and says what they were made from: without it, what the source
	// has no more would be told from what others have added by the managers of fields only.
	hashAnnotation = "workspace-sync.shardplane.io/hash"
)

// copyOf returns what is applied to have a copy of an object.
func copyOf(from *unstructured.Unstructured, by string) *unstructured.Unstructured {
	content := maps.Clone(from.DeepCopy().Object)
	delete(content, "status")
	content["metadata"] = map[string]any{}
	obj := &unstructured.Unstructured{Object: content}
	obj.SetName(from.GetName())
	obj.SetNamespace(from.GetNamespace())
	labels := maps.Clone(from.GetLabels())
	delete(labels, copyLabel)
	labels[byLabel] = by
	obj.SetLabels(labels)
	annotations := map[string]string{}
	for key, value := range from.GetAnnotations() {
		domain, _, _ := strings.Cut(key, "/")
		if key != corev1.LastAppliedConfigAnnotation && !strings.HasSuffix("."+domain, ".kcp.io") {
			annotations[key] = value
		}
	}
	obj.SetAnnotations(annotations)
	text, err := json.Marshal(obj.Object)
	if err != nil {
		panic(err) // it came as JSON
	}
	annotations[hashAnnotation] = fmt.Sprintf("%x", sha256.Sum256(text))[:16]
	obj.SetAnnotations(annotations)
	return obj
}

// contains reports whether a document has all that another one has.
func contains(whole, part any) bool {
	wholeMap, isMap := whole.(map[string]any)
	partMap, wantsMap := part.(map[string]any)
	if !isMap || !wantsMap {
		return reflect.DeepEqual(whole, part)
	}
	for key, value := range partMap {
		if found, ok := wholeMap[key]; !ok || !contains(found, value) {
			return false
		}
	}
	return true
}

// conflictingFields returns the fields that another manager has set otherwise.
func conflictingFields(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var fields []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			fields = append(fields, cause.Field)
		}
	}
	return fields
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
