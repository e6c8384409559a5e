package whole

import "strings"

type upper struct{ lower *lower }

func (u *upper) name() string { return strings.ToUpper(u.lower.text) }
