package whole

type lower struct{ text string }

func (l *lower) grow() string { return (&upper{lower: l}).name() }
