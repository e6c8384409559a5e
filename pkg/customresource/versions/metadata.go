package versions

import "time"

// isPlainMetadata reports whether metadata are as they come of a metav1.ObjectMeta that
// was written, so that they stay the same if they are read and written again, as
// upstream's codec does with those of every object.
func isPlainMetadata(metadata map[string]any) bool {
	if metadata["creationTimestamp"] == nil {
		return false
	}
	return eachField(metadata, func(name string, value any) bool {
		switch name {
		case "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion":
			return isText(value)
		case "generation":
			number, ok := value.(int64)
			return ok && number != 0
		case "deletionGracePeriodSeconds":
			_, ok := value.(int64)
			return ok
		case "creationTimestamp", "deletionTimestamp":
			return isTime(value)
		case "labels", "annotations":
			texts, ok := value.(map[string]any)
			return ok && len(texts) > 0 && eachField(texts, func(_ string, value any) bool { return isString(value) })
		case "finalizers":
			return isFilled(value, isString)
		case "ownerReferences":
			return isFilled(value, isPlainOwner)
		case "managedFields":
			return isFilled(value, isPlainManager)
		default:
			return false
		}
	})
}

// isPlainOwner is isPlainMetadata for a metav1.OwnerReference.
func isPlainOwner(value any) bool {
	const required = 4
	owner, ok := value.(map[string]any)
	found := 0
	return ok && eachField(owner, func(name string, value any) bool {
		switch name {
		case "apiVersion", "kind", "name", "uid":
			found++
			return isString(value)
		case "controller", "blockOwnerDeletion":
			_, ok := value.(bool)
			return ok
		default:
			return false
		}
	}) && found == required
}

// isPlainManager is isPlainMetadata for a metav1.ManagedFieldsEntry.
func isPlainManager(value any) bool {
	manager, ok := value.(map[string]any)
	return ok && eachField(manager, func(name string, value any) bool {
		switch name {
		case "manager", "operation", "apiVersion", "fieldsType", "subresource":
			return isText(value)
		case "time":
			return isTime(value)
		case "fieldsV1":
			fields, ok := value.(map[string]any)
			return ok && areFields(fields)
		default:
			return false
		}
	})
}

// areFields reports whether a set of fields has nothing but sets of fields.
func areFields(fields map[string]any) bool {
	return eachField(fields, func(_ string, value any) bool {
		below, ok := value.(map[string]any)
		return ok && areFields(below)
	})
}

func eachField(fields map[string]any, ok func(name string, value any) bool) bool {
	for name, value := range fields {
		if !ok(name, value) {
			return false
		}
	}
	return true
}

// isFilled reports whether a value is a list of one item at least, and of each kind.
func isFilled(value any, ok func(any) bool) bool {
	items, isList := value.([]any)
	if !isList || len(items) == 0 {
		return false
	}
	for _, item := range items {
		if !ok(item) {
			return false
		}
	}
	return true
}

func isString(value any) bool {
	_, ok := value.(string)
	return ok
}

func isText(value any) bool {
	text, ok := value.(string)
	return ok && text != ""
}

// isTime reports whether a value is a time as metav1.Time is written, and not zero.
func isTime(value any) bool {
	text, ok := value.(string)
	if !ok || len(text) != len("2006-01-02T15:04:05Z") {
		return false
	}
	at, err := time.Parse(time.RFC3339, text)
	return err == nil && !at.IsZero() && at.UTC().Format(time.RFC3339) == text
}
