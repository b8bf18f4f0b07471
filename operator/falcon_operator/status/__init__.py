"""What people read: status, conditions, diagnoses, Events. Everything here can be made anew from the intent."""
